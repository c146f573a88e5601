"""What the chaos test takes from the audit log: since when somebody leads."""

import json
from datetime import UTC, datetime

import pytest

from tests.apiserver.chaos.audit import Audit


def renewal(user, at):
    time = datetime.fromtimestamp(at, UTC).isoformat()
    lease = {"resource": "leases", "namespace": "default", "name": "grpo-operator"}
    record = {"kind": "Event", "apiVersion": "audit.k8s.io/v1", "user": {"username": user}, "objectRef": lease}
    answer = {"responseStatus": {"code": 200}, "requestReceivedTimestamp": time, "stageTimestamp": time}
    return json.dumps({**record, **answer}, separators=(",", ":")) + "\n"


@pytest.mark.parametrize(
    ("renewals", "led"),
    [
        ([("a", 100), ("a", 110), ("a", 120)], (100, 120)),
        ([("a", 100), ("a", 110), ("b", 112)], (112, 112)),
        ([("a", 100), ("a", 110), ("a", 160), ("a", 170)], (160, 170)),
    ],
    ids=["goes on", "another takes over", "comes back after the Lease has run out"],
)
def test_leader_leads_since_it_last_took_the_lease(tmp_path, renewals, led):
    """The Lease lasts for 15 s; in a gap that is longer nobody leads, though the same one comes back."""
    log = tmp_path / "audit.log"
    log.write_text("".join(renewal(*one) for one in renewals))
    audit = Audit(log)
    audit.read()
    assert audit.led == led
    assert audit.broken == []
