"""Failures that end the trainer, each with the exit code that tells the operator what to do next."""

import re

from grpo_api.names import ExitCode

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def plain(text: str) -> str:
    """Without a terminal's colours, such as Ray's."""
    return _ESCAPES.sub("", text)


class TrainerError(Exception):
    """A failure with a machine-readable `reason` (CamelCase) and an exit code."""

    exit_code: ExitCode

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        # Exceptions pickle by `args`, which lacks `reason`; these travel between Ray workers.
        return type(self), (self.reason, self.message)


class SpecError(TrainerError):
    """The spec cannot be run as written; never retried."""

    exit_code = ExitCode.BAD_SPEC


class UserInputError(TrainerError):
    """The model, data or reward that the spec names is at fault; never retried."""

    exit_code = ExitCode.BAD_INPUT


class PeerLostError(TrainerError):
    """A peer, device or volume was lost, stalled or timed out; the gang restarts."""

    exit_code = ExitCode.PEER_LOST
