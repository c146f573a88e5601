"""Why the API server refused a child: which part of it said no, whether it may change its mind, and the repair."""

import re

from grpo_operator.observe import CreateFault
from grpo_operator.reasons import Reason

_AMOUNTS = "template.resources, template.shmSize and trainer.nGpusPerNode"

# (sign in the API server's words, reason, repair), the first that fits. The words are those of Kubernetes' admission
# plugins ResourceQuota, LimitRanger, PodSecurity, Priority, ServiceAccount and RuntimeClass, and of its webhooks and
# policies.
_SIGNS = [
    (r"exceeded quota", Reason.QUOTA_EXCEEDED, "free what others hold, or have the quota raised"),
    (r"failed quota: .*must specify", Reason.QUOTA_EXCEEDED, "set in template.resources what it names"),
    (
        r"(minimum|maximum) \S+ usage per \S+ is|max limit to request ratio per",
        Reason.LIMIT_RANGE,
        f"the namespace's LimitRange allows no such amount: change {_AMOUNTS} (checkpoint.claimTemplate.size for a "
        "claim), or have the LimitRange changed",
    ),
    (
        r"violates PodSecurity",
        Reason.POD_SECURITY,
        "remove from template.podOverlay what it names, or have the namespace's label "
        "pod-security.kubernetes.io/enforce changed",
    ),
    (
        r"failed calling webhook",
        Reason.ADMISSION_UNAVAILABLE,
        "that webhook does not answer: tell the cluster's administrators",
    ),
    (
        r"admission webhook \"|ValidatingAdmissionPolicy",
        Reason.ADMISSION_DENIED,
        "a rule of this cluster: change what it names in template, or ask the cluster's administrators",
    ),
    (r"no PriorityClass with name", Reason.CREATE_REFUSED, "correct template.priorityClassName"),
    (
        r"error looking up service account",
        Reason.CREATE_REFUSED,
        "make that service account, or correct template.serviceAccountName",
    ),
    (r"RuntimeClass", Reason.CREATE_REFUSED, "correct runtimeClassName in template.podOverlay"),
]


def refusal(kind: str, name: str, code: int, message: str) -> CreateFault | None:
    """The fault, or None where the error passes by itself (the API server is busy, or another write came between)."""
    found = next((sign for sign in _SIGNS if re.search(sign[0], message)), None)
    if code not in (400, 403, 404, 422) and not (found and found[1] is Reason.ADMISSION_UNAVAILABLE):
        return None
    reason, repair = (found[1], f"; {found[2]}") if found else (Reason.CREATE_REFUSED, "")
    # What others say may be otherwise tomorrow; the API server's own validation of a manifest is not.
    final = code in (400, 422) and found is None
    return CreateFault(reason, f"{kind} {name}: {message}{repair}", final)
