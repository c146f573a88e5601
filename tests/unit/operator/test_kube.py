"""What the client makes of an API server's answers, over real connections."""

import asyncio
import json

import pytest
from aiohttp import ClientError, ClientSession, web
from kubernetes.aio.config import kube_config

from grpo_operator.kube import Kube, KubeError

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sums-0", "namespace": "team"}}


class Server:
    """Gives the same answer to everything and keeps what was asked."""

    def __init__(self):
        self.asked, self.answer = [], (200, "{}", {})

    async def serve(self, request):
        self.asked.append((request.method, request.path, await request.text()))
        status, body, headers = self.answer
        return web.Response(status=status, text=body, headers=headers)


@pytest.fixture
async def server(tmp_path, monkeypatch):
    found = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    yield found
    await runner.cleanup()


@pytest.fixture
async def kube(server):
    counted = []
    made = Kube(lambda *request: counted.append(request))
    made.counted = counted
    await made.connect()
    yield made
    await made.close()


def refusal(code, reason, message="", **headers):
    body = json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message})
    return code, body, {"Content-Type": "application/json", **headers}


async def test_refusal_tells_code_reason_words_and_the_wait_that_is_asked_for(server, kube):
    server.answer = refusal(429, "TooManyRequests", "too many", **{"Retry-After": "7"})
    with pytest.raises(KubeError, match="too many") as caught:
        await kube.create("Pod", POD)
    error = caught.value
    assert (error.code, error.reason, error.retry_after) == (429, "TooManyRequests", 7.0)
    assert kube.counted == [("create", "pods", 429)]


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", "", "[]", '"no"', "\x00"])
async def test_proxys_page_is_an_error_with_its_code(server, kube, body):
    server.answer = (502, body, {"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"})
    with pytest.raises(KubeError) as caught:
        await kube.get("Pod", "team", "sums-0")
    assert (caught.value.code, caught.value.retry_after) == (502, 0.0)


@pytest.mark.parametrize(("code", "there"), [(200, True), (404, False), (409, False)])
async def test_deletion_tells_whether_the_object_was_there(server, kube, code, there):
    server.answer = (200, "{}", {}) if there else refusal(code, "")
    assert await kube.delete("Pod", "team", "sums-0", "uid-1") is there
    assert json.loads(server.asked[0][2])["preconditions"] == {"uid": "uid-1"}


async def test_without_the_lease_nothing_is_written_but_the_lease(server, kube):
    """A process that was frozen while another took the Lease wakes up in the middle of its work."""
    server.answer = (200, "{}", {})
    kube.may_write = lambda: False
    for write in (
        kube.create("Pod", POD),
        kube.delete("Pod", "team", "sums-0", "uid-1"),
        kube.patch_status("GRPOJob", "team", "sums", "uid-1", {}),
    ):
        with pytest.raises(KubeError, match="Lease"):
            await write
    assert server.asked == []
    await kube.get("Pod", "team", "sums-0")
    await kube.replace("Lease", {"metadata": {"name": "l", "namespace": "system"}})
    assert [method for method, _, _ in server.asked] == ["GET", "PUT"]


async def test_server_that_is_away_is_an_error_that_the_queue_and_the_resync_know(kube):
    kube._api.configuration.host = "http://127.0.0.1:1"
    with pytest.raises((ClientError, OSError, TimeoutError)):
        await asyncio.wait_for(kube.get("Pod", "team", "sums-0"), 5)
    assert kube.counted == [("get", "pods", 0)]


@pytest.mark.parametrize(("proxy", "reads_netrc"), [(None, False), ("http://proxy.example:3128", True)])
async def test_netrc_is_read_for_the_sake_of_a_proxy_only(kube, server, monkeypatch, proxy, reads_netrc):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Kube()
    await made.connect()
    asked = []
    monkeypatch.setattr(ClientSession, "_get_netrc_auth", lambda self, host: asked.append(host))
    await made.list("Pod", "team")
    await made.close()
    assert bool(asked) == reads_netrc
    assert server.asked[-1][:2] == ("GET", "/api/v1/namespaces/team/pods")
