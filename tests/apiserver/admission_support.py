"""Asks the API server what it says of many objects in one call of kubectl."""

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol


class Kubectl(Protocol):
    """A control plane's kubectl."""

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str: ...


def verdicts(plane: Kubectl, objects: Sequence[dict[str, Any]]) -> list[str]:
    """The API server's refusal of each object, empty where it would be taken. Names must differ; nothing is stored.

    One document each rather than a List, whose items kubectl checks itself, in words of its own.
    """
    documents = "\n---\n".join(json.dumps(item) for item in objects)
    said = plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=documents, check=False)
    taken = set(re.findall(r"^grpojob\.grpo\.dev/(\S+) created", said, re.MULTILINE))
    refused = iter(re.split(r"^(?=Error from server)", said, flags=re.MULTILINE)[1:])
    answers = ["" if item["metadata"]["name"] in taken else next(refused, "no answer") for item in objects]
    assert next(refused, None) is None, said
    assert "no answer" not in answers, said
    return answers
