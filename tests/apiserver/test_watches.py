"""Watches that are cut, and whose place in the history the API server has thrown away meanwhile (410 Gone)."""

from urllib.request import urlopen

import pytest

from tests.apiserver.operator_process import Operator
from tests.apiserver.watch_proxy import WatchProxy

pytestmark = pytest.mark.apiserver

PROGRAM = """
from grpo_operator import main
main.FIRST_RESYNC_SECONDS = main.RESYNC_SECONDS = 3600.0  # else that finds what is to be found here, only later
main.main()
"""


@pytest.fixture
def proxied(plane):
    """An operator behind a proxy of its watches."""
    proxy = WatchProxy(plane.plane)
    operator = Operator(plane.plane, plane.directory / "proxied.log")
    operator.program = ("-c", PROGRAM)
    operator.start(KUBECONFIG=str(proxy.kubeconfig(plane.directory / "proxied.kubeconfig")))
    yield proxy, operator
    operator.stop()
    proxy.close()
    plane.kubectl("delete", "grpojobs", "--all", "--wait=false")
    plane.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")


def test_watches_whose_place_is_gone_begin_anew_and_miss_nothing(plane, proxied, job):
    """While no watch is there, one job loses a pod, one is deleted, and one is made."""
    proxy, operator = proxied
    for name in ("loses", "goes"):
        plane.apply(job(name))
        plane.run_pods(name)
    for name in ("loses", "goes"):
        plane.wait(f"gang of {name}", lambda name=name: plane.status(name).get("createdAttempt") == 0)
    proxy.cut()
    cut = set(proxy.watched)
    plane.kubectl("delete", "pod", "loses-1", "--force", "--grace-period=0")
    plane.kubectl("delete", "grpojob", "goes")
    plane.apply(job("comes"))
    proxy.go_on()
    try:
        plane.wait("410 for every watch", lambda: proxy.gone == cut, 60)
        plane.wait("pods of the job that came", lambda: len(plane.items("pods", "comes")) == 2, 60)
        plane.wait("a new attempt", lambda: plane.status("loses").get("attempt") == 1, 60)
        assert [entry["cause"] for entry in plane.status("loses")["restarts"]] == ["PodDeleted"]

        def second_gang():
            plane.confirm_deletions("loses")
            pods = plane.items("pods", "loses").values()
            return {pod["metadata"]["labels"]["grpo.dev/attempt"] for pod in pods} == {"1"} and len(pods) == 2

        plane.wait("the gang of attempt 1", second_gang, 60)
        with urlopen(f"http://127.0.0.1:{operator.metrics_port}/metrics", timeout=10) as answer:
            counted = answer.read().decode()
        assert ('"comes"' in counted, '"goes"' in counted) == (True, False)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{proxy.gone} of {cut}\n{operator.log.read_text()[-3000:]}") from None
    assert operator.alive()
    assert plane.get("lease", "grpo-operator")["spec"]["holderIdentity"] == operator.identity, "the same process"
