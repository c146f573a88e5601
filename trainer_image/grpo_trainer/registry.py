"""Things that a spec chooses by name, and functions that it names by import path instead."""

import importlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from grpo_trainer.errors import SpecError, UserInputError

T = TypeVar("T")


class Registry(Generic[T]):
    """What one field of the spec may name."""

    def __init__(self, field: str, reason: str):
        """`reason` is that of the SpecError for a name which is not there."""
        self._field, self._reason = field, reason
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        self._entries[name] = entry

    def find(self, name: str) -> T:
        """The entry of that name. Raises SpecError, which lists the names there are."""
        if name not in self._entries:
            raise SpecError(self._reason, f"{self._field} is {name!r}; use one of {', '.join(self.names())}")
        return self._entries[name]

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._entries)


def import_function(field: str, path: str) -> Callable[..., Any]:
    """The function that a field names as `package.module:function`. Raises UserInputError where there is none."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module may raise anything when it is imported
        raise UserInputError(
            "ImportFailed",
            f"{field} {path!r} cannot be imported: {type(error).__name__}: {error}; put the module into the image, or "
            "onto a volume that PYTHONPATH in template.env names",
        ) from error
    if not callable(function):
        raise UserInputError("ImportFailed", f"{field} {path!r} is no function but a {type(function).__name__}")
    return function  # type: ignore[no-any-return]
