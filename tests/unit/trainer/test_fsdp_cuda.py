"""The actor on one GPU: float32 gradients equal plain autograd's, and bfloat16 with the flash kernel comes close."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from grpo_trainer.checkpoint import CheckpointManager
from grpo_trainer.workers.fsdp import FsdpActor
from tests.unit.trainer.test_fsdp import OBJECTIVES, batch, plain_gradients
from tests.unit.trainer.trainer_support import make_model, make_samples, make_spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CUTS = {"one row": {}, "micro 2": {"ppoMicroBatchSizePerGpu": 2}, "17 tokens": {"ppoMaxTokenLenPerGpu": 17}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("model")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    yield make_model(directory / "model")
    dist.destroy_process_group()


def gradients(
    model: Path, objective: str, cut: str, dtype: str, *, reshard: bool
) -> tuple[dict[str, torch.Tensor], dict[str, float], list[torch.Tensor]]:
    actor = FsdpActor(
        make_spec(model, model={"dtype": dtype}, actor={**OBJECTIVES[objective], **CUTS[cut], "gradClip": 1e6}),
        rank=0,
        world_size=1,
        device=torch.device("cuda", 0),
        total_updates=1,
        reshard_after_forward=reshard,
    )
    samples = batch(objective)
    log_probs = actor.compute_log_probs(samples)
    grads: dict[str, torch.Tensor] = {}

    def record() -> None:
        for name, parameter in actor.model.named_parameters():
            grads[name.removeprefix("lm.")] = parameter.grad.full_tensor().cpu()

    actor.optimizer.step = record
    metrics = actor.update(samples)
    for _, tensor in actor.full_parameters():
        assert tensor.dtype == getattr(torch, dtype)
        assert tensor.is_cuda
    return grads, metrics, log_probs


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("reshard", [True, False])
def test_float32_gradients_equal_plain_autograd(model: Path, objective: str, cut: str, reshard: bool) -> None:
    grads, metrics, _ = gradients(model, objective, cut, "float32", reshard=reshard)
    expected, expected_metrics = plain_gradients(model, objective)
    for name, want in expected.items():
        torch.testing.assert_close(grads[name], want, atol=2e-5, rtol=1e-3)
    assert metrics["entropy"] == pytest.approx(expected_metrics["entropy"], rel=1e-4)


@pytest.mark.parametrize("cut", CUTS)
def test_bfloat16_comes_close_to_float32(model: Path, cut: str) -> None:
    objective = "token-mean, on-policy"
    exact, _, exact_log_probs = gradients(model, objective, cut, "float32", reshard=True)
    grads, metrics, log_probs = gradients(model, objective, cut, "bfloat16", reshard=True)
    difference = torch.cat(log_probs) - torch.cat(exact_log_probs)
    assert difference.abs().mean() < 0.1
    flat, exact_flat = (torch.cat([g.flatten() for g in one.values()]) for one in (grads, exact))
    assert torch.cosine_similarity(flat, exact_flat, dim=0) > 0.99
    assert metrics["update_skipped"] == 0


def test_a_step_and_its_checkpoint(model: Path, tmp_path: Path) -> None:
    def actor() -> FsdpActor:
        return FsdpActor(
            make_spec(model, model={"dtype": "bfloat16"}),
            rank=0,
            world_size=1,
            device=torch.device("cuda", 0),
            total_updates=4,
        )

    def parameters(of: FsdpActor) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in of.full_parameters()}

    first, samples = actor(), make_samples()
    manager = CheckpointManager(tmp_path, keep=1)
    before = parameters(first)
    first.update(samples)
    manager.save(1, first, {"step": 1})
    first.update(samples)
    manager.wait()
    after = parameters(first)
    assert not torch.equal(after["model.norm.weight"], before["model.norm.weight"])

    second = actor()
    info = manager.newest_complete()
    assert info is not None
    assert manager.load(info, second) == {"step": 1}
    second.update(samples)
    torch.testing.assert_close(parameters(second), after, atol=2e-2, rtol=0)
    lm = AutoModelForCausalLM.from_pretrained(info.path / "hf")
    assert lm.dtype == torch.bfloat16
