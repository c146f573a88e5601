"""Names that the API refuses with a reason of their own, at admission (as fields of the CRD that no object may hold)
and in every later layer."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reserved:
    """A field that may not be set."""

    section: str
    """Path of the object that would hold it, below `spec`; empty for the spec itself."""
    name: str
    schema: dict[str, Any]
    """Type that is let through to the rule which refuses it."""
    message: str

    @property
    def path(self) -> str:
        return ".".join(part for part in ("spec", self.section, self.name) if part)


RESERVED = (
    Reserved(
        "",
        "critic",
        {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "a critic is not in this API yet: remove this section; no advantage estimator needs one",
    ),
    Reserved(
        "algorithm",
        "trainer",
        {"type": "string", "maxLength": 64},
        "the only trainer is GRPO; ppo and dpo are not in this API yet: remove this field",
    ),
    Reserved(
        "rollout",
        "false",
        {"type": "integer"},
        'YAML reads a bare n as the boolean false: put the key in quotes, as in "n": 8',
    ),
)

NOT_YET = {
    "sglang": "the engine sglang is not in this API yet: use vllm",
    "gae": "gae needs a critic, which is not in this API yet: use grpo",
    "ppo": "ppo is not in this API yet",
    "dpo": "dpo is not in this API yet",
}
"""Values that name what will come with its code."""
