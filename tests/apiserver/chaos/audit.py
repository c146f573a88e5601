"""What the operators asked of the API server, by its audit log: who wrote, when, and with what preconditions."""

import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_operator.lease import DURATION_SECONDS

Object = dict[str, Any]

USER = "grpo-operator-"
"""The operators' users end with their number."""
_USERS = [f"{USER}{number}" for number in range(2)]
_GROUPS = [{"group": "grpo.dev", "resources": ["grpojobs/status"]}, {"group": "coordination.k8s.io"}]
POLICY: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Request", "users": _USERS, "verbs": ["delete"]},
        {"level": "Request", "users": _USERS, "resources": _GROUPS},
        {"level": "Metadata", "users": _USERS},
        {"level": "None"},
    ],
}
_BEGIN = '{"kind":"Event","apiVersion":"audit.k8s.io/'
STRAY_WRITES = 8
"""As many as an operator has workers: what each was about to send when the process was frozen is sent when it wakes
up, however late. UID preconditions make that harmless."""


class Audit:
    """`read` takes in what is new; `broken` lists what should never have been asked for."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = 0
        self._holder, self._since, self._renewed = "", 0.0, 0.0
        self._strays = 0
        self.started: dict[str, list[float]] = defaultdict(list)
        """When each process of a user was started: before that, the Lease was another's."""
        self.broken: list[str] = []
        self.writes = 0
        """Those that may have changed something."""
        self.without_grace: list[tuple[float, str]] = []
        """(time, UID) of deletions without grace that met a pod."""

    @property
    def led(self) -> tuple[float, float]:
        """When the present leader took the Lease, and when it last renewed it."""
        return self._since, self._renewed

    def read(self) -> None:
        if not self._log.exists():
            return
        with self._log.open() as file:
            file.seek(self._at)
            while (line := file.readline()).endswith("\n"):
                self._at = file.tell()
                # A server that is killed leaves a part of a record, and the next one's first follows on the same line.
                self._take(json.loads(line[line.rindex(_BEGIN) :]))

    def _take(self, event: Object) -> None:
        if event["responseStatus"].get("code", 0) in (0, 429, 503):
            return  # turned away, mostly before the request was read
        user, place, body = event["user"]["username"], event.get("objectRef") or {}, event.get("requestObject")
        asked = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        if place.get("resource") == "leases":
            if 200 <= event["responseStatus"]["code"] < 300:
                before, self._renewed = self._renewed, datetime.fromisoformat(event["stageTimestamp"]).timestamp()
                # One that comes back after its Lease has run out has not led in between.
                if self._holder != user or self._renewed - before > DURATION_SECONDS:
                    self._holder, self._since, self._strays = user, self._renewed, 0
            return
        asks = place.get("resource") == "selfsubjectaccessreviews" or "dryRun=" in event["requestURI"]
        self.writes += 200 <= event["responseStatus"]["code"] < 300 and not asks
        what = (
            f"{event['requestReceivedTimestamp']}: {user}: {event['verb']} {place.get('resource')} {place.get('name')}"
        )
        self._may(user, asked, what)
        if event["verb"] == "delete":
            options = body or {}
            uid = (options.get("preconditions") or {}).get("uid")
            if uid is None:
                self.broken.append(f"{what}: names no UID, so it may hit a namesake")
            elif options.get("gracePeriodSeconds") == 0 and event["responseStatus"]["code"] == 200:
                self.without_grace.append((asked, uid))
        elif place.get("subresource") == "status" and not _tests_uid(body):
            self.broken.append(f"{what}: names no UID, so it may hit a namesake")

    def _may(self, user: str, asked: float, what: str) -> None:
        """A process may write once it has written itself into the Lease, until another has."""
        began = max((at for at in self.started[user] if at < asked), default=0.0)
        if (user == self._holder and self._renewed > began) or asked < self._since:
            return
        self._strays += 1
        if self._strays > STRAY_WRITES:
            self.broken.append(f"{what}: without the Lease")


def _tests_uid(patch: Any) -> bool:
    """Of a JSON patch (RFC 6902). A merge patch of a custom resource's status tests nothing, whatever it names."""
    return isinstance(patch, list) and any(step["op"] == "test" and step["path"] == "/metadata/uid" for step in patch)
