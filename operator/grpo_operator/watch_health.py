"""Whether the watches bring what the API server has: one that died in silence is told by a list that knows more."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from grpo_operator.kube import Object


class WatchHealth:
    """How long a watch has owed a change that a list showed.

    Time since the last event says nothing of a quiet cluster. Resource versions of one kind grow, so a watch that
    lives brings at least the newest one that a list has shown, a moment later.
    """

    def __init__(self, namespaces: tuple[str, ...], clock: Callable[[], float] = time.monotonic) -> None:
        self._namespaces, self._clock = namespaces, clock
        self._brought: dict[tuple[str, str], int] = {}
        self._owed: dict[tuple[str, str], tuple[int, float]] = {}
        self.begun = asyncio.Event()
        """Set when a watch has begun with a list: what was deleted before, no watch will tell."""
        self.gone: set[str] = set()
        """UIDs that watches have told to be deleted. Who lists clears it first: the list may be older than that."""

    def brought(self, kind: str, item: Object, event: str | None) -> None:
        """A watch delivered this object; `event` is its type, None for an item of the list that a watch begins with."""
        if event is None:
            self.begun.set()
        elif event == "DELETED":
            self.gone.add(item["metadata"]["uid"])
        scope = item["metadata"]["namespace"] if self._namespaces else ""
        watch = (kind, scope)
        self._brought[watch] = max(self._brought.get(watch, 0), version_of(item))

    def listed(self, kind: str, namespace: str, versions: set[int]) -> None:
        """A list of one namespace, or of all, gave objects with these resource versions."""
        watch = (kind, namespace)
        owed = self._owed.get(watch, (0, 0.0))[0]
        if owed in versions and self._brought.get(watch, 0) < owed:
            return  # the older debt tells more
        # What is owed and listed no more may have gone before the watch began, which then never heard of it.
        self._owed[watch] = (max(versions, default=0), self._clock())

    def owes(self) -> tuple[str, float]:
        """(kind and namespace of the watch that is longest behind, seconds); ("", 0) where none is."""
        owed = [
            (since, f"{kind}s in {namespace or 'all namespaces'}")
            for (kind, namespace), (newest, since) in self._owed.items()
            if self._brought.get((kind, namespace), 0) < newest
        ]
        since, watch = min(owed, default=(self._clock(), ""))
        return watch, self._clock() - since


def version_of(item: dict[str, Any]) -> int:
    version = str(item["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0
