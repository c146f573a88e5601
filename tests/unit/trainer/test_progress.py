"""The pod's endpoints over real HTTP, the time left, and termination reports that the kubelet reads whole."""

import json
import socket
import struct
import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from grpo_api.names import TERMINATION_LOG
from grpo_api.status import CheckpointStatus, HeadReport, Progress, TerminationReport
from grpo_trainer.metrics import StepReport, TrainerMetrics
from grpo_trainer.progress import Pace, ProgressServer, progress_of, write_termination_report

REPORT = StepReport(
    step=5,
    total_steps=20,
    step_seconds=2.0,
    phase_seconds={},
    rewards=[1.0, 0.0],
    prompt_tokens=90,
    response_tokens=10,
    responses=2,
    truncated=0.0,
    zero_std_groups=0.0,
    eta_seconds=30.04,
)


@pytest.fixture
def server():
    metrics = TrainerMetrics("team", "arithmetic")
    metrics.record_step(REPORT, 1000.0)
    server = ProgressServer(0, metrics)
    yield server
    server.close()


def get(server: ProgressServer, path: str) -> tuple[str, str]:
    """Content type and body."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as response:
        return response.headers["Content-Type"], response.read().decode()


def test_endpoints(server):
    kind, body = get(server, "/metrics")
    assert kind.startswith("text/plain")
    assert "grpo_step" in {family.name for family in text_string_to_metric_families(body)}
    assert get(server, "/healthz")[1] == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(server, "/other")


def test_progress(server):
    assert json.loads(get(server, "/progress")[1]) == {"phase": "starting"}
    server.set_phase("training")
    server.update(progress=progress_of(REPORT, 1000.0))
    server.update(checkpoint=CheckpointStatus(step=5, size_bytes=10))
    body = json.loads(get(server, "/progress")[1])
    assert body == {
        "phase": "training",
        "progress": {
            "step": 5,
            "totalSteps": 20,
            "percent": "25%",
            "rewardMean": 0.5,
            "tokensPerSecond": 50.0,
            "etaSeconds": 30.0,
            "lastStepTime": "1970-01-01T00:16:40Z",
        },
        "checkpoint": {"step": 5, "sizeBytes": 10},
    }
    assert HeadReport.model_validate(body).progress.step == 5


def test_a_client_that_goes_away_is_silent(server, capfd, monkeypatch):
    ended = threading.Event()
    shutdown = server._server.shutdown_request
    monkeypatch.setattr(server._server, "shutdown_request", lambda request: (shutdown(request), ended.set()))

    def leave():
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets
        assert ended.wait(5)
        ended.clear()

    leave()
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(ThreadingHTTPServer, "finish_request", lambda *_: 1 / 0)
    leave()
    assert "ZeroDivisionError" in capfd.readouterr().err  # other errors are shown


def test_pace_is_the_mean_of_the_last_steps():
    pace = Pace(window=2)
    assert pace.eta_seconds(10) is None
    for seconds in (100.0, 2.0, 4.0):
        pace.add(seconds)
    assert pace.eta_seconds(10) == 30.0


@pytest.mark.parametrize(
    "message",
    ["short", "x" * 100_000, "\u2212" * 5000, '"\n\\' * 5000, "\U0001f600" * 3000, "\x00" * 3000, "a\udcffb" * 3000],
)
def test_termination_report_fits_and_reads_back(tmp_path, message):
    file = tmp_path / "log"
    progress, checkpoint = Progress(step=5, total_steps=20), CheckpointStatus(step=4, path="/checkpoints/x")
    write_termination_report(str(file), 65, "RewardSyntaxError", message, progress, checkpoint)
    body = file.read_bytes()
    report = TerminationReport.model_validate_json(body)
    assert (report.exit_code, report.reason, report.progress.step, report.checkpoint.step) == (
        65,
        "RewardSyntaxError",
        5,
        4,
    )
    if len(message) < 1000:
        assert report.message == message
    else:
        assert 4000 < len(body) <= 4096
        assert " [...] " in report.message


def test_a_long_message_keeps_its_beginning_and_end(tmp_path):
    write_termination_report(str(tmp_path / "log"), 1, "Failed", "FIRST " + "x" * 9000 + " LAST")
    message = json.loads((tmp_path / "log").read_text())["message"]
    assert message.startswith("FIRST xxx")
    assert message.endswith("xxx LAST")


def test_a_missing_path_is_no_error(tmp_path, monkeypatch):
    write_termination_report(str(tmp_path / "absent" / "log"), 0, "Done")
    assert not (tmp_path / "absent").exists()
    monkeypatch.setattr("grpo_trainer.progress.os.path.exists", lambda path: False)
    monkeypatch.setattr("builtins.open", lambda *_: pytest.fail("would make a file in /dev"))
    write_termination_report(TERMINATION_LOG, 0, "Done")
