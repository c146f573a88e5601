"""How the entry point ends: exit code, reason and words in the termination report."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from grpo_trainer import main as main_module
from tests.unit.trainer.trainer_support import make_job


class Ended(BaseException):
    pass


def end(code: int) -> None:
    raise Ended(code)


def report_of(directory: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]) -> dict[str, Any]:
    """Of the pod of rank 0."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    job = make_job(directory, model={"dtype": "float32"} | model, metrics={"port": port})
    (directory / "job.json").write_text(json.dumps(job.dump()))
    monkeypatch.setenv(main_module.ENV_JOB_FILE, str(directory / "job.json"))
    monkeypatch.setenv(main_module.ENV_TERMINATION_LOG, str(directory / "report.json"))
    monkeypatch.setattr(main_module.signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended):
        main_module.main()
    report: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return report


@pytest.mark.parametrize(("name", "reason"), [("path", "ModelNotLoaded"), ("tokenizerPath", "TokenizerNotLoaded")])
def test_a_directory_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str) -> None:
    report = report_of(tmp_path, monkeypatch, {"path": str(tmp_path), name: "/nope"})
    assert (report["exitCode"], report["reason"]) == (65, reason)
    assert report["message"] == (
        f"model.{name} /nope does not exist in the pod: correct it, or mount the volume that holds it "
        "(template.podOverlay)"
    )


def test_lengths_beyond_the_models_positions_end_the_job_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LlamaConfig(max_position_embeddings=64).save_pretrained(tmp_path)
    report = report_of(tmp_path, monkeypatch, {"path": str(tmp_path)})
    assert (report["exitCode"], report["reason"]) == (64, "ModelMismatch")
    assert "512 = 521 tokens, more than the model's 64 positions" in report["message"]


def test_no_terminal_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("\x1b[36mray::Worker\x1b[39m failed")

    monkeypatch.setattr(main_module, "_lead", fail)
    report = report_of(tmp_path, monkeypatch, {})
    assert (report["exitCode"], report["reason"], report["message"]) == (1, "RuntimeError", "ray::Worker failed")
    error = capsys.readouterr().err
    assert "in fail" in error
    assert "\x1b" not in error
