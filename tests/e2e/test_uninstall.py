"""`helm uninstall` leaves nothing that is stuck. Runs last: the file's name sorts after the others."""

import pytest

from e2e_support import NAMESPACE, OPERATOR_NAMESPACE, tiny_job

pytestmark = pytest.mark.e2e


def test_uninstall_leaves_no_stuck_object(cluster):
    cluster.apply(tiny_job("left-behind", runPolicy={"suspend": True}))
    cluster.helm("uninstall", "grpo-operator", "--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "90s")
    cluster.kubectl("delete", "grpojob", "left-behind", "--timeout=30s")
    for namespace in (NAMESPACE, OPERATOR_NAMESPACE):
        cluster.kubectl("delete", "namespace", namespace, "--timeout=90s")
    cluster.kubectl("create", "namespace", NAMESPACE)
