"""Errors that a user sees as one clear text, without a traceback."""


class CliError(Exception):
    """Ends the command: the text goes to stderr, `exit_code` to the shell."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Forbidden(CliError):
    """The API server does not let this user do it: no use to try again."""


class Silence(CliError):
    """A stream from the API server brought nothing for as long as a read may take; it may only be idle."""
