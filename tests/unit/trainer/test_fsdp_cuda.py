"""The actor on one GPU: float32 gradients equal plain autograd's, and bfloat16 with the flash kernel comes close."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from grpo_trainer.checkpoint import CheckpointManager
from grpo_trainer.workers.fsdp import FsdpActor
from tests.unit.trainer.test_fsdp import ALGORITHM, OBJECTIVES, batch, plain_gradients
from tests.unit.trainer.test_lora import ALPHA, OBJECTIVE, RANK, stir
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
        make_spec(
            model,
            model={"dtype": dtype},
            actor={**OBJECTIVES[objective], **CUTS[cut], "gradClip": 1e6},
            algorithm=ALGORITHM,
        ),
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
    metrics = actor.update(samples, on_policy="on-policy" in objective)
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
        # By norm: sums run in another order on a GPU, and a small element among large ones then differs by much.
        assert (grads[name] - want).norm() <= 2e-5 * want.norm(), name
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


def adapters(model: Path, dtype: str = "float32", **actor: object) -> FsdpActor:
    return FsdpActor(
        make_spec(model, model={"dtype": dtype, "lora": {"rank": RANK, "alpha": ALPHA}}, actor=actor),
        rank=0,
        world_size=1,
        device=torch.device("cuda", 0),
        total_updates=4,
    )


@pytest.mark.parametrize("cut", CUTS)
def test_gradients_of_adapters(model: Path, cut: str, tmp_path: Path) -> None:
    """By the chain rule, as in test_lora.py, in float32; and bfloat16 comes close."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for dtype in ("float32", "bfloat16"):
        actor = adapters(model, dtype, **OBJECTIVES[OBJECTIVE], **CUTS[cut], gradClip=1e6)
        stir(actor)
        grads = found[dtype] = {}

        def record(actor: FsdpActor = actor, grads: dict[str, torch.Tensor] = grads) -> None:
            for name, parameter in actor._trained().items():
                grads[name.removeprefix("lm.")] = parameter.grad.full_tensor().cpu()

        actor.optimizer.step = record
        if dtype == "float32":
            adapter = {name: tensor.cpu() for name, tensor in actor.full_adapter()}
            lm = AutoModelForCausalLM.from_pretrained(model)
            lm.load_state_dict({name: tensor.cpu() for name, tensor in actor.full_parameters()}, strict=False)
            lm.save_pretrained(tmp_path / "merged")
        actor.update(batch(OBJECTIVE))
    whole, _ = plain_gradients(tmp_path / "merged", OBJECTIVE)
    assert found["float32"].keys() == adapter.keys()
    for name, got in found["float32"].items():
        layer, _, which = name.rpartition(".")
        a, b, w = adapter[f"{layer}.lora_A"], adapter[f"{layer}.lora_B"], whole[f"{layer}.weight"]
        want = ALPHA / RANK * (w @ a.T if which == "lora_B" else b.T @ w)
        torch.testing.assert_close(got, want, atol=2e-5 * max(1.0, want.abs().max().item()), rtol=1e-3)
    flat, exact = (torch.cat([g.flatten() for g in found[dtype].values()]) for dtype in ("bfloat16", "float32"))
    assert torch.cosine_similarity(flat, exact, dim=0) > 0.98


def test_adapters_leave_their_base_and_resume(model: Path, tmp_path: Path) -> None:
    """In bfloat16: updates move adapters alone, the reference is the base, and a checkpoint goes on where it was."""

    def everything(of: FsdpActor) -> dict[str, torch.Tensor]:
        of._reshard_all()
        return {name: p.detach().full_tensor().clone() for name, p in of.model.named_parameters()}

    first, samples = adapters(model, "bfloat16"), make_samples()
    first.spec.actor.use_kl_loss = True
    start, base = everything(first), first.compute_log_probs(samples, reference=True)
    torch.testing.assert_close(first.compute_log_probs(samples), base, atol=0, rtol=0)  # B is zero
    for sample, log_probs in zip(samples, base, strict=True):
        sample.ref_log_probs = log_probs
    first.update(samples)
    manager = CheckpointManager(tmp_path, keep=1)
    manager.save(1, first, {"step": 1})
    manager.wait()
    first.update(samples)
    after = everything(first)
    for name, tensor in after.items():
        assert torch.equal(tensor, start[name]) != ("lora_" in name), name
    torch.testing.assert_close(first.compute_log_probs(samples, reference=True), base, atol=0, rtol=0)

    second = adapters(model, "bfloat16")
    second.spec.actor.use_kl_loss = True
    info = manager.newest_complete()
    assert info is not None
    manager.load(info, second)
    second.update(samples)
    # Atomic additions in the flash kernel's backward are in no fixed order.
    torch.testing.assert_close(everything(second), after, atol=5e-3, rtol=0)
