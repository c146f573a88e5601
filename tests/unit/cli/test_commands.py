"""grpoctl's commands from their options to their exit code. What needs an API server gets one on the loopback."""

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_api import names
from grpoctl import main
from grpoctl.cluster import Cluster
from grpoctl.errors import CliError, Forbidden, Silence
from grpoctl.follow import Followed, Outcome
from grpoctl.source import LogReader
from grpoctl.steps import StepRow, StepTable

REWARDS = [0.9, 0.65, 0.7, 0.75, 0.7, 0.44]
LONG = "arithmetic-with-a-name-of-sixty-characters-which-kubernetes-allows"


def job(name: str = "tiny", **status) -> dict:
    status = {"state": "Suspended", "message": f"{LONG} " * 4, **status}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": "1"},
        "spec": {"model": {"path": "/models/m"}, "trainer": {"nnodes": 1}, "runPolicy": {"maxRestarts": 5}},
        "status": status,
    }


def restart(attempt: int) -> dict:
    return {"attempt": attempt, "time": "2026-01-01T00:00:00Z", "cause": "OOMKilled", "message": f"{LONG} " * 4}


class FakeCluster:
    """A cluster in memory. `logs`: what each read of the pod's log brings, an exception for a failed one."""

    def __init__(self, found: list | dict, logs: list | None = None) -> None:
        self.namespace, self.found, self.logs = "team", found, logs or []

    def command(self, *arguments: str) -> str:
        return " ".join(["grpoctl", *arguments, "-n team"])

    def find_job(self, name: str) -> dict | None:
        found = self.found.pop(0) if isinstance(self.found, list) else self.found
        if isinstance(found, Exception):
            raise found
        return found

    def get_job(self, name: str) -> dict:
        return self.find_job(name)

    def list_jobs(self, all_namespaces: bool) -> list[dict]:
        return [self.found]

    def find_pod(self, name: str) -> dict:
        status = {
            "phase": "Running",
            "containerStatuses": [{"name": names.TRAINER_CONTAINER, "state": {"running": {}}}],
        }
        return {"metadata": {"uid": "1", "labels": {}}, "status": status}

    def pod_log(self, pod: str, *, follow: bool, last: int | None = None):
        lines = self.logs.pop(0) if self.logs else []
        for number, line in enumerate(lines):
            if isinstance(line, Exception):
                raise line
            yield f"2026-01-01T00:00:{number:02d}Z", line


@pytest.fixture
def call(monkeypatch):
    """Runs a command on a cluster in memory, as with a pipe as standard output."""
    monkeypatch.setattr(main, "RETRY_SECONDS", 0)

    def run(cluster: FakeCluster, *arguments: str):
        monkeypatch.setattr(Cluster, "connect", staticmethod(lambda *_: cluster))
        return CliRunner().invoke(main.app, arguments, env={"COLUMNS": "80"})

    return run


def steps(rewards: list[float], first: int = 1) -> StepTable:
    table = StepTable()
    for number, reward in enumerate(rewards, first):
        table.add(StepRow(number, 20, 0, {"reward/mean": reward}))
    return table


# Pipes


def test_a_pipe_gets_every_word_on_one_line(call):
    cluster = FakeCluster(job(LONG, restarts=[restart(0)]))
    listed = call(cluster, "list").stdout
    shown = call(cluster, "status", LONG).stdout
    for text in (listed, shown):
        assert "…" not in text
        assert any(LONG in line for line in text.splitlines())
    assert sum((f"{LONG} " * 4).strip() in line for line in shown.splitlines()) == 2  # the state's and the restart's


# Restarts


@pytest.mark.parametrize(
    ("entries", "fact", "column"),
    [
        (0, "0; failures that count: 1 of 5", "0"),
        (2, "2; failures that count: 1 of 5", "2"),
        (20, "20 or more; failures that count: 1 of 5", "20+"),
    ],
)
def test_resumed_attempts_are_no_restarts(call, entries, fact, column):
    cluster = FakeCluster(job(attempt=entries + 3, failures=1, restarts=[restart(i) for i in range(entries)]))
    shown = call(cluster, "status", "tiny").stdout.splitlines()
    assert next(line for line in shown if line.startswith("restarts ")).split(None, 1)[1].strip() == fact
    head, row = call(cluster, "list").stdout.splitlines()
    assert row[head.index("RESTARTS") :].split()[0] == column


# logs -f


def test_followed_log_goes_on_after_faults_until_the_job_ends(call):
    fault = CliError("cannot read the log of pod tiny-0: the API server at x does not answer")
    running = job(state="Running")
    found = [running, running, fault, running, running, job(state="Succeeded")]
    logs = [["a", Silence("idle")], ["a", "b", fault], ["a", "b", fault], ["a", "b", "c"]]
    result = call(FakeCluster(found, logs), "logs", "tiny", "-f")
    assert (result.exit_code, result.exception) == (0, None)
    assert result.stdout.split() == ["a", "b", "c"]
    assert result.stderr == f"{fault}; trying again\n"


@pytest.mark.parametrize(
    ("found", "log", "code", "words"),
    [
        ([job(), job(), None], [], 2, "was deleted while"),
        ([job(), job()], [Forbidden("pods is forbidden")], 1, "forbidden"),
        ([job(), job(state="Failed")], [CliError("no such container")], 1, "no such container"),
    ],
)
def test_followed_log_ends_where_nothing_more_can_come(call, found, log, code, words):
    result = call(FakeCluster(found, [log]), "logs", "tiny", "-f")
    assert isinstance(result.exception, CliError)
    assert words in str(result.exception)
    assert int(result.exception.exit_code) == code


def test_silence_is_a_fault_of_a_log_that_is_not_followed():
    with pytest.raises(Silence):
        LogReader(FakeCluster([], [[Silence("idle")]]), "tiny-0").read(lambda *_: None, follow=False)


# The kubeconfig and the options that choose it


@pytest.mark.parametrize(
    "text", [b"garbage\n", b"a: [1", b"[]", b"", b"{}", b"contexts: 3", b"contexts: [3]", b"\xff\xfe\x00"]
)
def test_a_file_that_is_no_kubeconfig_is_told_in_one_line(tmp_path, text):
    file = tmp_path / "f"
    file.write_bytes(text)
    with pytest.raises(CliError, match=r"no usable kubeconfig .*set KUBECONFIG or pass --kubeconfig") as error:
        Cluster.connect(str(file), None, None)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 1


def kubeconfig(folder: Path, port: int = 1) -> str:
    contexts = {name: {"cluster": "c", "user": "u", "namespace": space} for name, space in (("a", "team"), ("b", "b"))}
    text = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
        "current-context": "a",
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(text))
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["list", "-n", "x"], (None, None, "x")),
        (["-n", "x", "list"], (None, None, "x")),
        (["--namespace", "x", "list", "-n", "y"], (None, None, "y")),
        (["--context", "c", "--kubeconfig", "k", "status", "tiny", "-n", "x"], ("k", "c", "x")),
        (["-n", "x", "logs", "tiny"], (None, None, "x")),
        (["list"], (None, None, None)),
    ],
)
def test_cluster_options_stand_before_or_after_the_command(monkeypatch, arguments, expected):
    seen = []
    monkeypatch.setattr(Cluster, "connect", staticmethod(lambda *given: seen.append(given) or FakeCluster(job())))
    CliRunner().invoke(main.app, arguments)
    assert seen == [expected]


@pytest.mark.parametrize(
    ("context", "namespace", "command"),
    [
        (None, None, "grpoctl follow tiny --kubeconfig {}"),
        (None, "team", "grpoctl follow tiny --kubeconfig {}"),
        (None, "other", "grpoctl follow tiny --kubeconfig {} -n other"),
        ("b", "team", "grpoctl follow tiny --kubeconfig {} --context b -n team"),
    ],
)
def test_suggested_commands_lead_to_the_same_place(tmp_path, context, namespace, command):
    file = kubeconfig(tmp_path)
    assert Cluster.connect(file, context, namespace).command("follow", "tiny") == command.format(file)


def test_suggestion_after_an_interrupt_and_for_all_namespaces(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path))
    assert Cluster.connect(kubeconfig(tmp_path), None, "other").command("list", "-A").endswith("kubeconfig")
    main._print_end(FakeCluster([]), Outcome.INTERRUPTED, Followed("tiny"))
    assert capsys.readouterr().out.strip().endswith("Watch it again with: grpoctl follow tiny -n team")


def test_version():
    result = CliRunner().invoke(main.app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"grpoctl {metadata.version('grpo-operator')}\n")


# The reward of the last steps


def test_end_line_has_the_mean_of_the_last_steps(capsys):
    followed = Followed("tiny", {"state": "Succeeded", "message": "done"}, steps(REWARDS))
    main._print_end(FakeCluster([]), Outcome.SUCCEEDED, followed)
    assert capsys.readouterr().out == "Succeeded  done; reward 0.440 in the last step, 0.648 mean of the last 5\n"


def test_status_has_the_mean_of_the_last_steps_where_the_log_can_be_read(call):
    found = job(progress={"step": 6, "rewardMean": 0.44})
    log = [f"step={step}/20 reward/mean={reward}" for step, reward in enumerate(REWARDS, 1)]
    shown = call(FakeCluster(found, [log]), "status", "tiny").stdout
    assert "0.440 in the last step, 0.648 mean of the last 5" in shown
    shown = call(FakeCluster(found, [[CliError("gone")]]), "status", "tiny").stdout
    assert "0.440" in shown
    assert "mean of" not in shown


def test_status_has_the_last_validation(call):
    found = job(progress={"step": 6, "valStep": 5, "valRewardMean": 0.4321})
    assert re.search(r"validation +0\.432 after step 5", call(FakeCluster(found), "status", "tiny").stdout)


def test_recent_rewards_end_where_a_step_is_missing():
    table = steps([0.1, 0.2])
    assert table.recent_rewards(5) == [0.1, 0.2]
    table.add(StepRow(4, 20, 0, {"reward/mean": 0.4}))
    assert table.recent_rewards(5) == [0.4]
    assert StepTable().recent_rewards(5) == []


# The process


class ApiServer(BaseHTTPRequestHandler):
    """One suspended job without pods; a watch stays open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "watch=" in self.path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.server.stop.wait(30)
            return
        pod = "/pods/" in self.path
        body = json.dumps({"message": "no pod", "details": {"name": "tiny-0"}} if pod else job()).encode()
        self.send_response(404 if pod else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    server.daemon_threads, server.stop = True, threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.stop.set()
    server.shutdown()
    server.server_close()


def test_process_ends_with_the_commands_code_while_its_threads_still_read(api_server, tmp_path):
    # After 2 s the log's thread asks for the pod again, just as the process ends: it was aborted nearly each time.
    options = ["--kubeconfig", kubeconfig(tmp_path, api_server.server_port), "--timeout", "2"]
    command = [sys.executable, "-m", "grpoctl.main", "follow", "tiny", *options]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (124, ""), output
        assert "--timeout passed while the job was Suspended" in output
