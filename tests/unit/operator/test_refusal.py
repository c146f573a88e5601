"""What the API server says when it refuses a child, and what is made of it."""

import pytest

from grpo_operator.policies.refusal import refusal

FORBIDDEN = 'pods "sums-0" is forbidden: '
REQUIRED = 'Pod "sums-0" is invalid: spec.containers[1].image: Required value'
# name: (code, message, reason, a word of the repair, whether the manifest can never be made). The messages are those
# of a Kubernetes 1.37 API server.
CASES = {
    "quota": (
        403,
        FORBIDDEN + "exceeded quota: tight, requested: pods=1, used: pods=1, limited: pods=1",
        *("QuotaExceeded", "free what others hold", False),
    ),
    "quota of an amount that is not given": (
        403,
        FORBIDDEN + "failed quota: tight: must specify limits.cpu for: trainer; requests.cpu for: trainer",
        *("QuotaExceeded", "template.resources", False),
    ),
    "limit range, too much": (
        403,
        FORBIDDEN + "maximum cpu usage per Container is 1, but limit is 2",
        *("LimitRangeExceeded", "template.resources", False),
    ),
    "limit range, nothing said": (
        403,
        FORBIDDEN + "minimum memory usage per Pod is 1Gi.  No request is specified",
        *("LimitRangeExceeded", "template.resources", False),
    ),
    "limit range of claims": (
        403,
        'persistentvolumeclaims "c" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request '
        "is 50Gi",
        *("LimitRangeExceeded", "checkpoint.claimTemplate.size", False),
    ),
    "pod security": (
        403,
        FORBIDDEN + 'violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)',
        *("PodSecurityViolation", "template.podOverlay", False),
    ),
    "webhook": (
        403,
        'admission webhook "policy.example" denied the request: no pods on Fridays',
        *("AdmissionDenied", "administrators", False),
    ),
    "webhook that says so with code 400": (
        400,
        'admission webhook "policy.example" denied the request: no',
        *("AdmissionDenied", "administrators", False),
    ),
    "policy": (
        422,
        FORBIDDEN + "ValidatingAdmissionPolicy 'team' with binding 'team' denied request: label cost-centre is missing",
        *("AdmissionDenied", "template", False),
    ),
    "webhook that does not answer": (
        500,
        'Internal error occurred: failed calling webhook "policy.example": failed to call webhook: Post '
        '"https://policy.example.svc:443/": dial tcp: lookup policy.example.svc: no such host',
        *("AdmissionUnavailable", "does not answer", False),
    ),
    "priority class": (
        403,
        FORBIDDEN + "no PriorityClass with name urgent was found",
        *("CreateRefused", "template.priorityClassName", False),
    ),
    "service account": (
        403,
        FORBIDDEN + 'error looking up service account team/robot: serviceaccount "robot" not found',
        *("CreateRefused", "template.serviceAccountName", False),
    ),
    "namespace that goes": (
        403,
        FORBIDDEN + "unable to create new content in namespace team because it is being terminated",
        *("CreateRefused", "", False),
    ),
    "manifest, by its rules": (422, REQUIRED, "CreateRefused", "", True),
    "manifest, by its form": (
        400,
        'strict decoding error: unknown field "spec.hostNetworkk"',
        *("CreateRefused", "", True),
    ),
}


@pytest.mark.parametrize(("code", "message", "reason", "repair", "final"), CASES.values(), ids=CASES)
def test_refusal_is_told_by_who_refused_with_the_repair(code, message, reason, repair, final):
    fault = refusal("Pod", "sums-0", code, message)
    assert fault is not None
    assert (fault.reason, fault.final) == (reason, final)
    assert fault.message.startswith(f"Pod sums-0: {message}")
    assert repair in fault.message.removeprefix(f"Pod sums-0: {message}")


@pytest.mark.parametrize(("code", "message"), [(500, "etcdserver: request timed out"), (429, "too many"), (409, "x")])
def test_trouble_that_passes_is_no_refusal(code, message):
    assert refusal("Pod", "sums-0", code, message) is None
