"""Jobs and their children as the watches last showed them, by job."""

from collections.abc import Iterator

from grpo_api import names
from grpo_operator.gang.base import Capabilities
from grpo_operator.kube import Object
from grpo_operator.workqueue import Key


def key_of(item: Object) -> Key | None:
    """The job that an object belongs to: by its owner, which nobody edits; a kept claim has none: its label tells."""
    metadata = item["metadata"]
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or [] if owner["kind"] == names.KIND]
    name = owners[0] if owners else (metadata.get("labels") or {}).get(names.LABEL_JOB_NAME)
    return (metadata["namespace"], name) if name else None


_UNREAD = {"env", "envFrom", "command", "args", "volumeMounts", "livenessProbe", "readinessProbe", "startupProbe"}


def _slim(kind: str, item: Object) -> Object:
    """What is read of an object. The rest, field managers and environments above all, was half of the memory."""
    result = {key: value for key, value in item.items() if kind != "ConfigMap" or key not in ("data", "binaryData")}
    result["metadata"] = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    if kind == "Pod":
        result["spec"] = dict(item.get("spec") or {})
        for field in {"containers", "initContainers"} & result["spec"].keys():
            result["spec"][field] = [
                {key: value for key, value in container.items() if key not in _UNREAD}
                for container in result["spec"][field] or []
            ]
    return result


class Cache:
    """Filled by an initial list and by watch events; a write's answer goes in at once, so that no write is repeated.

    What goes in tells by its answer whether it is news: the watch brings again what an answer has brought.
    """

    def __init__(self) -> None:
        self.capabilities = Capabilities()
        self._jobs: dict[Key, Object] = {}
        self._children: dict[Key, dict[tuple[str, str], Object]] = {}

    def job(self, key: Key) -> Object | None:
        return self._jobs.get(key)

    def jobs(self) -> Iterator[tuple[Key, Object]]:
        return iter(list(self._jobs.items()))

    def children(self, key: Key) -> dict[tuple[str, str], Object]:
        return dict(self._children.get(key, {}))

    def put_job(self, job: Object) -> Key | None:
        """Returns the job's key where this is news of it."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        order = _order(job, self._jobs.get(key))
        if order >= 0:
            self._jobs[key] = _slim(names.KIND, job)
        return key if order > 0 else None

    def drop_job(self, job: Object) -> Key:
        """Forget a deleted job; a namesake that was made after it stays."""
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        if key in self._jobs and self._jobs[key]["metadata"].get("uid") == job["metadata"].get("uid"):
            del self._jobs[key]
        return key

    def put_child(self, kind: str, item: Object) -> Key | None:
        """Returns the key of the job that it belongs to, where there is one and this is news of it."""
        key = key_of(item)
        if key is None:
            return None
        held, child = self._children.setdefault(key, {}), (kind, item["metadata"]["name"])
        order = _order(item, held.get(child))
        if order >= 0:
            held[child] = _slim(kind, item)
        return key if order > 0 else None

    def drop_child(self, kind: str, item: Object) -> Key | None:
        """Forget a deleted child; a namesake that was made after it stays."""
        key = key_of(item)
        if key is None:
            return None
        if self.holds(kind, item):
            del self._children[key][kind, item["metadata"]["name"]]
        if not self._children.get(key):
            self._children.pop(key, None)
        return key

    def holds(self, kind: str, item: Object) -> bool:
        """Whether this child, and not only a namesake of it, is known."""
        key = key_of(item)
        held = self._children.get(key, {}).get((kind, item["metadata"]["name"])) if key else None
        return held is not None and held["metadata"].get("uid") == item["metadata"].get("uid")

    def vanished(self, kind: str, seen: set[str]) -> list[Object]:
        """Cached objects of a kind whose UIDs a fresh list did not show (a watch can miss a deletion)."""
        if kind == names.KIND:
            return [job for job in self._jobs.values() if job["metadata"]["uid"] not in seen]
        return [
            item
            for held in self._children.values()
            for (child_kind, _), item in held.items()
            if child_kind == kind and item["metadata"]["uid"] not in seen
        ]


def _order(item: Object, held: Object | None) -> int:
    """1, 0 or -1 where `item` is newer than `held`, the same, or a stale view of it. Resource versions are comparable
    integers since Kubernetes 1.35."""
    try:
        new, old = (int(one["metadata"]["resourceVersion"]) for one in (item, held or {}))
    except (KeyError, ValueError):
        return 1
    return (new > old) - (new < old)
