"""An API server in memory: objects by kind and name, merge patches (RFC 7386), UID preconditions, refusals."""

import copy
import itertools
from collections.abc import AsyncIterator
from typing import Any

from grpo_operator.kube import KubeError, Object, Page, kind_of


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


class FakeKube:
    """Stands in for `grpo_operator.kube.Kube`."""

    def __init__(self, *items: Object) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.refusals: dict[tuple[str, str], KubeError] = {}
        """Errors that creating an object of this kind and name meets."""
        self.requests: list[tuple[str, ...]] = []
        """(verb, kind, name), in order."""
        self._versions = itertools.count(100)
        for item in items:
            self.put(item)

    def put(self, item: Object) -> Object:
        made = copy.deepcopy(item)
        metadata = made["metadata"]
        metadata["resourceVersion"] = str(next(self._versions))
        metadata.setdefault("uid", f"uid-{metadata['resourceVersion']}")
        self.objects[kind_of(made), metadata["name"]] = made
        return copy.deepcopy(made)

    def writes(self) -> list[tuple[str, ...]]:
        return [request for request in self.requests if request[0] not in ("get", "list")]

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self.requests.append(("get", kind, name))
        return copy.deepcopy(self.objects.get((kind, name)))

    async def list(self, kind: str, namespace: str = "", selector: str = "", fields: str = "") -> list[Object]:
        """All of a kind, or where `fields` asks for it, the one of a name or the Events that speak of one object."""
        self.requests.append(("list", kind, fields))
        place, _, wanted = fields.partition(",")[0].partition("=")
        part, _, key = place.partition(".")
        found = [item for (held, _), item in self.objects.items() if held == kind]
        return [copy.deepcopy(item) for item in found if not fields or item[part][key] == wanted]

    async def pages(self, *asked: str) -> AsyncIterator[Page]:
        yield await self.list(*asked)

    async def patch(self, kind: str, namespace: str, name: str, change: Object) -> Object:
        self.requests.append(("patch", kind, name))
        if (kind, name) not in self.objects:
            raise KubeError(404, "NotFound", f'{kind} "{name}" not found')
        return self.put(merge_patch(self.objects[kind, name], change))

    async def create(self, kind: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        self.requests.append(("create", kind, name))
        if (error := self.refusals.get((kind, name))) is not None:
            raise error
        if (kind, name) in self.objects:
            raise KubeError(409, "AlreadyExists", f'{kind} "{name}" already exists')
        made = copy.deepcopy(body)
        made.setdefault("status", {})
        return self.put(made)

    async def replace(self, kind: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        self.requests.append(("update", kind, name))
        held = self.objects[kind, name]
        if body["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", "the object has been modified")
        return self.put(body)

    async def patch_status(
        self, kind: str, namespace: str, name: str, uid: str, status: Object, held: Object | None = None
    ) -> Object:
        self.requests.append(("patch", kind, name))
        found = self.objects[kind, name]
        if found["metadata"]["uid"] != uid or any(
            found.get("status", {}).get(field) != value for field, value in (held or {}).items()
        ):
            raise KubeError(422, "Invalid", "the server rejected our request due to an error in our request")
        return self.put({**found, "status": copy.deepcopy(status)})

    async def delete(self, kind: str, namespace: str, name: str, uid: str, grace: int | None = None) -> bool:
        self.requests.append(("delete", kind, name) if grace is None else ("delete", kind, name, f"grace={grace}"))
        if self.objects.get((kind, name), {}).get("metadata", {}).get("uid") == uid:
            del self.objects[kind, name]
            return True
        return False
