"""Checkpoints: exact resume at any number of ranks, and complete or invisible whatever interrupts a save."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from grpo_trainer import checkpoint as checkpoint_module
from grpo_trainer.checkpoint import CheckpointError, CheckpointManager
from grpo_trainer.errors import UserInputError
from grpo_trainer.workers.fsdp import FsdpActor
from tests.unit.trainer.trainer_support import make_model, make_samples, make_spec, on_ranks

CPU = torch.device("cpu")
OPTIM = {"lr": 1e-2, "lrWarmupSteps": 2, "lrSchedulerType": "cosine"}


def make_actor(model: str, rank: int = 0, world_size: int = 1) -> FsdpActor:
    spec = make_spec(Path(model), actor={"optim": OPTIM})
    return FsdpActor(spec, rank=rank, world_size=world_size, device=CPU, total_updates=6)


def parameters(actor: FsdpActor) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in actor.full_parameters()}


def train_and_save(rank: int, world_size: int, model: str, directory: str) -> dict[str, Any]:
    """Updates 0 and 1, a checkpoint, then updates 2 and 3 while it is written."""
    actor = make_actor(model, rank, world_size)
    manager = CheckpointManager(directory, keep=2)
    batches = [make_samples(seed)[rank::world_size] for seed in range(4)]
    actor.update(batches[0])
    actor.update(batches[1])
    saved = parameters(actor)
    torch.manual_seed(40 + rank)
    manager.save(2, actor, {"rows": [3, 1, 2], "step": 2}, tokens=123, spec_hash="abc", run="uid-1")
    noise = torch.rand(3)
    metrics = [actor.update(batches[2]), actor.update(batches[3])]
    manager.wait()
    return {"saved": saved, "noise": noise, "metrics": metrics, "end": parameters(actor)}


def resume(rank: int, world_size: int, model: str, directory: str) -> dict[str, Any]:
    actor = make_actor(model, rank, world_size)
    actor.update(make_samples(9)[rank::world_size])  # whatever it held before must not shine through
    manager = CheckpointManager(directory, keep=2)
    info = manager.newest_complete()
    assert info is not None
    extra = manager.load(info, actor)
    loaded, noise = parameters(actor), torch.rand(3)
    batches = [make_samples(seed)[rank::world_size] for seed in range(4)]
    metrics = [actor.update(batches[2]), actor.update(batches[3])]
    about = [info.step, info.tokens, info.world_size, info.spec_hash, info.run]
    return {
        "extra": extra,
        "about": about,
        "loaded": loaded,
        "noise": noise,
        "metrics": metrics,
        "end": parameters(actor),
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("model"), vocab_size=257))  # rows that no 2 ranks share evenly


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A process group of this process only."""
    rendezvous = tmp_path_factory.mktemp("rendezvous") / "file"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_resume_is_exact_on_as_many_ranks_and_close_on_fewer(model: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints" / "ns.job"
    before = on_ranks(2, train_and_save, model, str(directory))
    for was, now in zip(before, on_ranks(2, resume, model, str(directory)), strict=True):
        assert now["extra"] == {"rows": [3, 1, 2], "step": 2}
        assert now["about"] == [2, 123, 2, "abc", "uid-1"]
        assert now["metrics"] == was["metrics"]
        torch.testing.assert_close(now["loaded"], was["saved"], rtol=0, atol=0)
        torch.testing.assert_close(now["noise"], was["noise"], rtol=0, atol=0)
        torch.testing.assert_close(now["end"], was["end"], rtol=0, atol=0)
    (single,) = on_ranks(1, resume, model, str(directory))
    torch.testing.assert_close(single["loaded"], before[0]["saved"], rtol=0, atol=0)
    torch.testing.assert_close(single["end"], before[0]["end"], rtol=1e-3, atol=1e-4)

    lm = AutoModelForCausalLM.from_pretrained(directory / "step-00000002" / "hf")
    torch.testing.assert_close(dict(lm.named_parameters()), before[0]["saved"], rtol=0, atol=0)
    names = sorted(path.name for path in (directory / "step-00000002").iterdir())
    assert names == [
        "hf", "manifest.json", "rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors", "state.json",
    ]  # fmt: skip


def test_old_checkpoints_go_and_five_resumes_leave_no_more_than_keep(alone: None, model: str, tmp_path: Path) -> None:
    for attempt in range(5):
        manager = CheckpointManager(tmp_path, keep=1)
        actor = make_actor(model)
        if info := manager.newest_complete():
            assert manager.load(info, actor) == {"step": attempt}
        manager.save(attempt + 1, actor, {"step": attempt + 1}, hf=False)
        manager.wait()
        assert [path.name for path in tmp_path.iterdir()] == [f"step-{attempt + 1:08d}"]


def test_a_run_sees_its_own_checkpoints_and_replaces_another_runs_of_the_same_step(
    alone: None, model: str, tmp_path: Path
) -> None:
    manager, actor = CheckpointManager(tmp_path, keep=9), make_actor(model)
    for step, run in ((4, "old"), (8, "old"), (4, "new")):
        manager.save(step, actor, {"run": run}, run=run, hf=False)
        manager.wait()
    newest = manager.newest_complete()
    assert newest is not None
    assert (newest.step, newest.run) == (4, "new")
    assert [info.step for info in manager.complete("old")] == [8]
    assert manager.newest_complete("other") is None


def test_a_failing_write_leaves_the_old_checkpoint_and_is_told(
    alone: None, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, actor = CheckpointManager(tmp_path, keep=1), make_actor(model)
    manager.save(1, actor, {}, hf=False)
    manager.wait()

    def full(tensors: Any, path: Path) -> None:
        path.write_bytes(b"x" * 100)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "save_file", full)
        manager.save(2, actor, {}, hf=False)
        with pytest.raises(CheckpointError, match=r"step 2 .* was not written: rank 0: OSError: .*No space left"):
            manager.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    manager.save(3, actor, {}, hf=False)
    manager.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_damage_is_found(alone: None, model: str, tmp_path: Path) -> None:
    manager, actor = CheckpointManager(tmp_path, keep=5), make_actor(model)
    for step in (1, 2, 3):
        manager.save(step, actor, {}, hf=False)
        manager.wait()
    shard = "rank-00000-of-00001.safetensors"
    os.truncate(tmp_path / "step-00000003" / shard, 1000)
    newest = manager.newest_complete()
    assert newest is not None
    assert newest.step == 2
    with (newest.path / shard).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(CheckpointError, match=r"rank-00000-of-00001.safetensors is damaged: delete .*step-00000002"):
        manager.load(newest, actor)
    (newest.path / "manifest.json").write_text("{")
    newest = manager.newest_complete()
    assert newest is not None
    assert newest.step == 1
    about = json.loads((newest.path / "manifest.json").read_text())
    assert about.pop("model") == {"path": model, "revision": None}
    (newest.path / "manifest.json").write_text(json.dumps(about))
    newest = manager.newest_complete()
    assert newest is not None  # a manifest of before it told the model
    assert newest.model is None
    manager.load(newest, actor)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"hidden_size": 32}, r"lm\S* has the shape \(.*\), the model's \(.*\)"),
        ({"vocab_size": 200}, r"embed_tokens.weight has the shape \(257, 64\), the model's \(200, 64\)"),
        ({"num_hidden_layers": 1}, r"only the checkpoint has model.*layers.1\."),
        ({"num_hidden_layers": 3}, r"only the model has model.*layers.2\."),
    ],
)
def test_another_architecture_is_the_users_fault(
    alone: None, model: str, tmp_path: Path, config: dict[str, int], what: str
) -> None:
    manager = CheckpointManager(tmp_path / "job", keep=1)
    manager.save(1, make_actor(model), {}, hf=False)
    manager.wait()
    other = make_actor(str(make_model(tmp_path / "other", **{"vocab_size": 257} | config)))
    before = parameters(other)
    info = manager.newest_complete()
    assert info is not None
    with pytest.raises(UserInputError, match=what) as caught:
        manager.load(info, other)
    assert (caught.value.reason, caught.value.exit_code) == ("CheckpointMismatch", 65)
    assert caught.value.message.startswith(f"{info.path} is of another architecture than model.path {tmp_path}/other: ")
    assert f"delete the directory {tmp_path}/job " in caught.value.message
    torch.testing.assert_close(parameters(other), before, rtol=0, atol=0)


KILLED = """
import sys, time
import torch, torch.distributed as dist
from grpo_trainer import checkpoint
from tests.unit.trainer.test_checkpoint import make_actor
directory, model = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{model}/rendezvous-{time.time()}", rank=0, world_size=1)
manager, actor = checkpoint.CheckpointManager(directory, keep=1), make_actor(model)
manager.save(1, actor, {"step": 1})
manager.wait()
save_file = checkpoint.save_file
def slow(tensors, path):
    save_file(tensors, path)
    print("written", flush=True)
    time.sleep(600)
checkpoint.save_file = slow
manager.save(2, actor, {"step": 2})
manager.wait()
"""


def test_a_killed_save_is_invisible_and_cleaned_later(alone: None, model: str, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(directory), model], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sorted(path.name for path in directory.iterdir()) == ["step-00000001", "step-00000002.partial"]
    manager, actor = CheckpointManager(directory, keep=1), make_actor(model)
    info = manager.newest_complete()
    assert info is not None
    assert manager.load(info, actor) == {"step": 1}
    manager.save(3, actor, {"step": 3}, hf=False)
    manager.wait()
    assert [path.name for path in directory.iterdir()] == ["step-00000003"]


def test_saving_runs_beside_training(alone: None, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, actor = CheckpointManager(tmp_path, keep=1), make_actor(model)
    release = tmp_path / "release"
    save_file = checkpoint_module.save_file

    def waiting(tensors: Any, path: Path) -> None:
        while not release.exists():
            time.sleep(0.01)
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint_module, "save_file", waiting)
    at_save = parameters(actor)
    manager.save(1, actor, {}, hf=False)
    actor.update(make_samples(1))
    actor.update(make_samples(2))
    assert not torch.equal(parameters(actor)["model.norm.weight"], at_save["model.norm.weight"])
    assert manager.newest_complete() is None
    release.touch()
    manager.wait()
    info = manager.newest_complete()
    assert info is not None
    assert json.loads((info.path / "manifest.json").read_text())["step"] == 1
    manager.load(info, actor)
    torch.testing.assert_close(parameters(actor), at_save, rtol=0, atol=0)
