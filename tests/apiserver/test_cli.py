"""grpoctl against a real API server and operator; the test stands in for the kubelet, the head pod's log included."""

import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from local_cluster.certificates import Authority

pytestmark = pytest.mark.apiserver


class Kubelet:
    """Serves container logs as a kubelet does: timestamps on every line, open until the container has ended."""

    def __init__(self, authority: Authority) -> None:
        self._lines: dict[str, list[str]] = {}
        self._ended: set[str] = set()
        self.dropped = 0
        self._drop = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                owner.serve(self, path.split("/")[3], "follow=true" in query)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("test-kubelet", "/CN=test-kubelet", addresses=("127.0.0.1",)))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def write(self, pod: str, *lines: str) -> None:
        self._lines.setdefault(pod, []).extend(f"2026-01-01T00:00:00.{time.monotonic_ns():021d}Z {x}\n" for x in lines)

    def new_pod(self, pod: str) -> None:
        self._lines.pop(pod, None)
        self._ended.discard(pod)

    def end(self, *pods: str) -> None:
        self._ended.update(pods)

    def drop_connections(self) -> None:
        self._drop.set()

    def serve(self, handler: BaseHTTPRequestHandler, pod: str, follow: bool) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        sent = 0
        while True:
            ended = pod in self._ended or not follow
            for line in self._lines.get(pod, [])[sent:]:
                data = line.encode()
                handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                handler.wfile.flush()
                sent += 1
            if ended:
                handler.wfile.write(b"0\r\n\r\n")
                return
            if follow and sent and self._drop.is_set():
                self._drop.clear()
                self.dropped += 1
                handler.close_connection = True
                return
            time.sleep(0.05)

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture(scope="module")
def kubelet(plane) -> Iterator[Kubelet]:
    made = Kubelet(plane.plane.authority)
    for node in plane.nodes:
        plane.patch_node(
            node,
            {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": made.port}},
            },
        )
    yield made
    made.close()


@pytest.fixture
def cli(rig, tmp_path):
    environment = {**os.environ, "KUBECONFIG": str(rig.plane.kubeconfig), "COLUMNS": "200"}

    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "grpoctl.main", *arguments]

    def call(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=90)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def start(*arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command(*arguments), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    call.start = start  # type: ignore[attr-defined]
    return call


@pytest.fixture
def file(job, tmp_path):
    def write(name: str, **sections) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(job(name, **sections)))
        return str(path)

    return write


def step(number: int, reward: float) -> str:
    return f"step={number}/20 reward/mean={reward} tokens_per_s=95.1 step_s=18.2 eta_s={20 - number}"


def test_run_follows_a_job_through_a_lost_connection_and_a_restart(rig, cli, file, kubelet, tmp_path):
    curve, table = tmp_path / "curve.png", tmp_path / "steps.csv"
    running = cli.start("run", file("cli"), "--curve", str(curve), "--csv", str(table), "--timeout", "120")
    kubelet.write("cli-0", "loading", step(1, 0.125), step(2, 0.25))
    rig.run_pods("cli")
    rig.wait("complete gang", lambda: rig.status("cli").get("createdAttempt") == 0)
    kubelet.drop_connections()
    rig.wait("a dropped connection", lambda: kubelet.dropped == 1)
    kubelet.write("cli-0", step(3, 0.375))
    assert "cli " in cli("list")
    assert cli("logs", "cli").splitlines() == ["loading", step(1, 0.125), step(2, 0.25), step(3, 0.375)]
    time.sleep(2)

    rig.end_pod("cli-1", 1, "boom")
    kubelet.end("cli-0")
    rig.wait("second attempt", lambda: rig.status("cli").get("attempt") == 1)

    def second_gang():
        rig.confirm_deletions("cli")
        return {p["metadata"]["labels"]["grpo.dev/attempt"] for p in rig.items("pods", "cli").values()} == {"1"}

    rig.wait("new pods", second_gang)
    kubelet.new_pod("cli-0")
    kubelet.write("cli-0", step(2, 0.5))
    rig.run_pods("cli")
    time.sleep(2)
    kubelet.write("cli-0", step(3, 0.75), step(20, 1.0))
    kubelet.end("cli-0")
    rig.end_pod("cli-0", 0, json.dumps({"exitCode": 0, "reason": "Completed"}))
    output, _ = running.communicate(timeout=30)
    assert running.returncode == 0, output

    lines = [text.split(None, 1)[1] for text in output.splitlines()[1:]]
    shown = [text.split()[1] + " " + text.split()[3] for text in lines if text.startswith("step")]
    assert shown == ["1/20 0.125", "2/20 0.250", "3/20 0.375", "2/20 0.500", "3/20 0.750", "20/20 1.000"]
    assert "grpojob.grpo.dev/cli created in namespace default" in output
    assert any("cli-1 ended with exit code 1 (Error): boom" in text for text in lines), output
    assert output.splitlines()[-1].startswith("Succeeded")
    assert curve.read_bytes()[:4] == b"\x89PNG"
    rows = [row.split(",")[:3] for row in table.read_text().splitlines()]
    assert rows[1:] == [["1", "0", "0.125"], ["2", "1", "0.5"], ["3", "1", "0.75"], ["20", "1", "1.0"]]

    # An ended job is told at once, from what is left of it.
    assert "step 20/20" in cli("follow", "cli")
    screen = cli("status", "cli")
    for words in ("default/cli  Succeeded", "cli-1 ended with exit code 1", "responses a step", "TrainingSucceeded"):
        assert words in screen, screen
    assert "exists already in namespace default (state Succeeded)" in cli("run", file("cli"), "--no-follow", code=1)

    old = rig.get("grpojob", "cli")["metadata"]["uid"]
    replacing = cli.start("run", file("cli"), "--no-follow", "--replace")
    rig.wait("a new job", lambda: rig.confirm_deletions("cli") or replacing.poll() is not None, 60)
    output = replacing.communicate()[0]
    assert replacing.returncode == 0, output
    assert rig.get("grpojob", "cli")["metadata"]["uid"] != old


def test_users_fault_ends_with_exit_code_1_and_its_words(rig, cli, file, kubelet):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return (1\n"
    path = file("typo", reward={"functions": [{"name": "mine", "python": {"source": source}}]})
    assert "mine.py, line 2: SyntaxError" in cli("run", path, code=64)

    running = cli.start("run", file("fault"))
    rig.run_pods("fault")
    rig.end_pod("fault-0", 65, json.dumps({"exitCode": 65, "reason": "RewardError", "message": "mine.py, line 3: no"}))
    output, _ = running.communicate(timeout=30)
    assert running.returncode == 1
    assert output.splitlines()[-1] == "Failed  RewardError: mine.py, line 3: no"


def test_timeout_ends_following_with_its_own_exit_code(rig, cli, file):
    assert "created" in cli("run", file("slow"), "--no-follow")
    output = cli("follow", "slow", "--timeout", "3", code=124)
    assert "--timeout passed while the job was" in output


def test_refusals_of_the_api_server_are_readable(rig, cli, file, job):
    assert 'namespaces "none" not found' in cli("run", file("lost"), "-n", "none", code=1)
    assert "there is no GRPOJob nothing in namespace default" in cli("status", "nothing", code=1)
    assert "there is no GRPOJob nothing" in cli("follow", "nothing", code=1)
    assert "the kubeconfig has no context x; it has: grpo-local" in cli("list", "--context", "x", code=1)
    assert "no usable kubeconfig (/none/k)" in cli("list", "--kubeconfig", "/none/k", code=1)
    assert "no GRPOJobs in namespace kube-public" in cli("list", "-n", "kube-public")


def test_deleted_job_ends_following(rig, cli, file):
    running = cli.start("run", file("brief"))
    rig.wait("pods", lambda: len(rig.items("pods", "brief")) == 2)
    time.sleep(1)
    rig.kubectl("delete", "grpojob", "brief")
    output, _ = running.communicate(timeout=30)
    assert running.returncode == 2, output
    assert "was deleted while it was followed" in output
