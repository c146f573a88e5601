"""One process's part of the policy: an FSDP2 shard, its optimizer, and the reference model."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import get_scheduler

from grpo_api.batch_plan import DEFAULT_MAX_TOKEN_LEN_PER_GPU
from grpo_api.job import GRPOJobSpec
from grpo_trainer.aggregate import LossCounts, token_weights
from grpo_trainer.checkpoint_files import ShardReader
from grpo_trainer.logprobs import PolicyModel
from grpo_trainer.lora import LoraLinear, add_lora, base_model
from grpo_trainer.losses import TOKEN_SUMS, LossInputs, compute_loss
from grpo_trainer.packing import Pack, idle_pack, pack_samples, to_device
from grpo_trainer.policy_losses import MiniBatch, find_loss
from grpo_trainer.rollout_correction import Mismatch, importance_weights, kept
from grpo_trainer.sample import Sample
from grpo_trainer.workers.model_loading import decoder_layers, load_model

CPU_PACK_TOKENS = 1024
"""Tokens a row on CPU where the spec sets no micro size or budget. With SmolLM2-135M's shape and 16-token responses
rows of 256 tokens took 13.6 s, 512 11.6 s, 1400 10.7 s; with 64-token responses 1024 39.6 s, 2300 43.3 s
(benchmarks/update_step.py --world-size 1)."""


def reshards(spec: GRPOJobSpec, device: torch.device) -> bool:
    """Whether parameters are freed after each layer's forward, to be gathered again for its backward."""
    return spec.actor.fsdp.reshard_after_forward and device.type == "cuda"


class FsdpActor:
    """The actor on one rank. Its methods are collective: every rank calls each of them, in the same order.

    With `actor.fsdp.reshardAfterForward` parameters are gathered for each layer's forward and again for its backward,
    and gradients are reduced after every micro-batch, so that full gradients never exist. Without it, and always on CPU
    (where traffic costs more than memory), parameters are gathered once between two optimizer steps, whether for
    log-probabilities, the update or the rollout engine, and gradients are reduced once an update.
    """

    def __init__(
        self,
        spec: GRPOJobSpec,
        *,
        rank: int,
        world_size: int,
        device: torch.device,
        total_updates: int,
        reshard_after_forward: bool | None = None,
    ):
        """`torch.distributed` is initialised already, over nccl on CUDA or gloo on CPU. `total_updates` is the length
        of the learning rate's schedule. `reshard_after_forward` overrides the spec.

        Raises UserInputError where the model cannot be loaded.
        """
        self.spec, self.rank, self.world_size, self.device = spec, rank, world_size, device
        self.reshard = reshards(spec, device) if reshard_after_forward is None else reshard_after_forward
        self.compute_dtype = getattr(torch, spec.model.dtype)
        self._mesh = init_device_mesh(device.type, (world_size,))
        lm = load_model(spec.model, device)
        self.config, self.generation_config = lm.config, lm.generation_config
        if spec.model.lora is not None:
            add_lora(lm, decoder_layers(lm), spec.model.lora)
        self.model = self._shard(lm)
        self._reference = None
        if spec.has_reference and spec.model.lora is None:
            self._reference = self._shard(load_model(spec.model, device)).requires_grad_(False)
        optim = spec.actor.optim
        self.optimizer = torch.optim.AdamW(
            list(self._trained().values()),
            lr=optim.lr,
            betas=(optim.betas[0], optim.betas[1]),
            weight_decay=optim.weight_decay,
            fused=True,
        )
        constant = optim.lr_scheduler_type == "constant"
        self.scheduler = get_scheduler(
            "constant_with_warmup" if constant else optim.lr_scheduler_type,
            self.optimizer,
            num_warmup_steps=optim.lr_warmup_steps,
            num_training_steps=total_updates,
        )

    def _shard(self, lm: nn.Module) -> PolicyModel:
        if self.device.type == "cuda":
            # Layers are recomputed in backward, as by verl's default: activations of 16k tokens fill a GPU otherwise.
            lm.gradient_checkpointing_enable({"use_reentrant": False})
            lm.train()
        model = PolicyModel(
            lm, temperature=self.spec.rollout.temperature, entropy_grad=self.spec.actor.entropy_coeff != 0
        )
        policy = MixedPrecisionPolicy(param_dtype=self.compute_dtype, reduce_dtype=torch.float32)
        options = {"mesh": self._mesh, "mp_policy": policy, "reshard_after_forward": self.reshard}
        for layer in decoder_layers(lm):
            fully_shard(layer, **options)
        fully_shard(model, **options)
        for _, module in _fsdp_modules(model):
            # Sums, not means, over ranks: token weights already divide by the whole mini-batch's counts.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        return model.to(self.device)

    def compute_log_probs(self, samples: list[Sample], *, reference: bool = False) -> list[torch.Tensor]:
        """(T,) float32 log-probabilities on CPU of each of this rank's samples, by the actor or the reference, of the
        distribution tempered by `rollout.temperature`."""
        if reference and not self.spec.has_reference:
            raise ValueError("there is no reference model: neither actor.useKlLoss nor algorithm.useKlInReward is set")
        model = self._reference if reference and self._reference is not None else self.model
        rollout, ref = self.spec.rollout, self.spec.ref
        count, tokens = rollout.log_prob_micro_batch_size_per_gpu, rollout.log_prob_max_token_len_per_gpu
        if reference and (ref.log_prob_micro_batch_size_per_gpu or ref.log_prob_max_token_len_per_gpu):
            count, tokens = ref.log_prob_micro_batch_size_per_gpu, ref.log_prob_max_token_len_per_gpu
        result = [torch.empty(0)] * len(samples)
        with torch.no_grad(), base_model(model) if reference else nullcontext():
            for pack in self._packs(samples, count, tokens):
                log_probs, _ = model(pack)
                for index, part in zip(pack.samples, log_probs.cpu().split(pack.lengths), strict=bool(pack.samples)):
                    result[index] = part
        return result

    def update(self, samples: list[Sample], *, on_policy: bool = False) -> dict[str, float]:
        """One optimizer step on this rank's part of a mini-batch. Metrics are of the whole mini-batch, equal on all
        ranks. `on_policy`: the policy is still the one that the step started from, so that the ratio is exactly 1,
        whichever rows `old_log_probs` came from; samples without them count as such, too.

        With no token to train on, or a gradient norm that is not finite, weights and optimizer stay as they are and
        `update_skipped` is 1; the schedule moves on.
        """
        actor = self.spec.actor
        trained = [sample for sample in samples if sample.trainable]
        tokens = sum(len(sample.response_ids) for sample in trained)
        totals = torch.tensor([tokens, len(trained)], dtype=torch.float64, device=self.device)
        dist.all_reduce(totals)
        counts = LossCounts(totals[0].item(), totals[1].item(), self.spec.data.max_response_length)
        held = self._chosen(trained, on_policy)
        packs = self._packs(trained, actor.ppo_micro_batch_size_per_gpu, actor.ppo_max_token_len_per_gpu)
        sums: dict[str, torch.Tensor] = {}
        mismatch = Mismatch(self.device)
        for number, pack in enumerate(packs):
            last = number == len(packs) - 1
            self.model.set_is_last_backward(last)
            if not self.reshard:
                self.model.set_requires_gradient_sync(last)
                self.model.set_reshard_after_backward(last)
            log_probs, entropy = self.model(pack)
            if not pack.samples:
                # Ranks with fewer rows take part in the collectives of the others' backward.
                (log_probs.sum() * 0.0 + entropy.sum() * 0.0).backward()
                continue
            chosen = [trained[index] for index in pack.samples]
            inputs = self._loss_inputs(chosen, log_probs, entropy, counts, mismatch, on_policy)
            if held is not None:
                of_pack = torch.cat([held[index] for index in pack.samples])
                inputs = replace(inputs, chosen=of_pack.to(self.device))
            outputs = compute_loss(inputs, actor)
            outputs.loss.backward()
            for name, value in outputs.sums.items():
                sums[name] = sums.get(name, 0.0) + value.double()
        metrics = self._reduce(sums, counts)
        metrics |= mismatch.reduce()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        metrics["grad_norm"] = norm.item()
        metrics["lr"] = self.scheduler.get_last_lr()[0]
        skip = counts.tokens == 0 or not torch.isfinite(norm).item()
        if not skip:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), actor.grad_clip, norm)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        return metrics | {"update_skipped": float(skip)}

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter by its Hugging Face name, in the compute dtype, on every rank; a tied one comes once, and
        adapters are merged into the weights that they belong to.

        A tensor is valid until the next one is asked for. One layer's parameters are gathered at a time.
        """
        modules = _fsdp_modules(self.model)
        inner = tuple(f"{name}." for name, _ in modules if name)
        for prefix, module in reversed(modules):
            module.unshard()
            for name, parameter in module.named_parameters():
                full = f"{prefix}.{name}" if prefix else name
                if full.startswith(inner) and not prefix:
                    continue
                owner, _, leaf = name.rpartition(".")
                layer = module.get_submodule(owner)
                if not isinstance(layer, LoraLinear) or leaf == "bias":
                    yield full.removeprefix("lm."), parameter.detach()
                elif leaf == "weight":
                    yield full.removeprefix("lm."), layer.merged()
            if self.reshard:
                module.reshard()

    def full_adapter(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trained parameters whole, in float32, by their names beside the Hugging Face ones. Collective."""
        self._reshard_all()
        for name, parameter in self._trained().items():
            yield name.removeprefix("lm."), parameter.detach().full_tensor()

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Copies of this rank's rows of every trained parameter and its Adam moments, and of its torch RNG, on CPU; and
        scalars for JSON. Not collective."""
        self._reshard_all()
        tensors: dict[str, torch.Tensor] = {"rng.cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        updates = 0
        for name, parameter in self._trained().items():
            tensors[f"model.{name}"] = _local(parameter).to("cpu", copy=True)
            moments = self.optimizer.state.get(parameter, {})
            for moment in _MOMENTS if moments else ():
                tensors[f"{moment}.{name}"] = _local(moments[moment]).to("cpu", copy=True)
                updates = int(moments["step"].item())
        return tensors, {"adam_step": updates, "scheduler": self.scheduler.state_dict()}

    def load_state(self, shards: ShardReader, scalars: dict[str, Any]) -> None:
        """Takes back what `state` gave, from any number of ranks. Not collective.

        Raises ValueError, before it changes anything, where names or shapes differ from the model's.
        """
        self._reshard_all()
        shapes = {f"model.{name}": tuple(parameter.shape) for name, parameter in self._trained().items()}
        if odd := sorted(shapes.keys() ^ shards.names("model.")):
            raise ValueError(f"only {'the model' if odd[0] in shapes else 'the checkpoint'} has {odd[0]}")
        for name, shape in shapes.items():
            if (saved := shards.shape(name)) != shape:
                raise ValueError(f"{name} has the shape {saved}, the model's {shape}")
        step = float(scalars["adam_step"])
        with torch.no_grad():
            for name, parameter in self._trained().items():
                _fill(parameter, shards, f"model.{name}")
                if step:
                    state = {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
                    for moment, tensor in state.items():
                        _fill(tensor, shards, f"{moment}.{name}")
                    self.optimizer.state[parameter] = {"step": torch.tensor(step, device=self.device), **state}
        self.scheduler.load_state_dict(scalars["scheduler"])
        for group, lr in zip(self.optimizer.param_groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = lr
        if (rng := shards.own("rng.cpu", self.rank)) is not None:
            torch.set_rng_state(rng)
        if self.device.type == "cuda" and (rng := shards.own("rng.cuda", self.rank)) is not None:
            torch.cuda.set_rng_state(rng, self.device)

    def _reshard_all(self) -> None:
        for _, module in _fsdp_modules(self.model):
            module.reshard()

    def _packs(self, samples: list[Sample], count: int | None, tokens: int | None) -> list[Pack]:
        """This rank's rows, followed by as many idle ones as make all ranks' numbers equal; one at least."""
        longest = max((len(s.prompt_ids) + len(s.response_ids) for s in samples), default=0)
        if count is None and tokens is None:
            tokens = max(CPU_PACK_TOKENS if self.device.type == "cpu" else DEFAULT_MAX_TOKEN_LEN_PER_GPU, longest)
        packs = pack_samples(samples, max_samples=count, max_tokens=tokens)
        number = torch.tensor([max(len(packs), 1)], device=self.device)
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        packs += [idle_pack()] * (int(number.item()) - len(packs))
        return [to_device(pack, self.device) for pack in packs]

    def _chosen(self, samples: list[Sample], on_policy: bool) -> list[torch.Tensor] | None:
        """(T,) booleans on CPU for each of this rank's samples of a mini-batch, where the loss chooses tokens of it."""
        choose = find_loss(self.spec.actor.policy_loss).choose
        if choose is None:
            return None
        current = self.compute_log_probs(samples)
        lengths = [len(sample.response_ids) for sample in samples]
        old = _old_log_probs(samples, current, on_policy)
        empty = [torch.empty(0)]  # of a rank without samples
        batch = MiniBatch(
            log_probs=torch.cat(current + empty).to(self.device),
            old_log_probs=torch.cat(old + empty).to(self.device),
            advantages=torch.tensor(_token_advantages(samples), dtype=torch.float32, device=self.device),
            lengths=tuple(lengths),
            keys=tuple(f"{sample.group}/{sample.response_ids}" for sample in samples),
            update=self.scheduler.last_epoch,
        )
        return list(choose(batch, self.spec.actor).cpu().split(lengths))

    def _loss_inputs(
        self,
        samples: list[Sample],
        log_probs: torch.Tensor,
        entropy: torch.Tensor,
        counts: LossCounts,
        mismatch: Mismatch,
        on_policy: bool,
    ) -> LossInputs:
        lengths = [len(sample.response_ids) for sample in samples]
        current = log_probs.detach().split(lengths)
        old = _old_log_probs(samples, current, on_policy)
        reference = None
        if self.spec.actor.use_kl_loss:
            reference = torch.cat([s.ref_log_probs for s in samples]).to(log_probs)
        actor = self.spec.actor
        weights = token_weights(actor.loss_agg_mode, lengths, counts).to(self.device)
        own_mode = find_loss(actor.policy_loss).aggregation
        return LossInputs(
            log_probs=log_probs,
            old_log_probs=torch.cat(old),
            rollout_weights=self._rollout_weights(samples, old, mismatch),
            advantages=torch.tensor(_token_advantages(samples), dtype=torch.float32, device=self.device),
            lengths=tuple(lengths),
            weights=weights,
            policy_weights=weights if own_mode is None else token_weights(own_mode, lengths, counts).to(self.device),
            entropy=entropy,
            ref_log_probs=reference,
        )

    def _rollout_weights(
        self, samples: list[Sample], old: list[torch.Tensor], mismatch: Mismatch
    ) -> torch.Tensor | None:
        """(T,) importance weights, 1 for samples without the rollout engine's log-probabilities; None where the spec
        wants none."""
        correction = self.spec.algorithm.rollout_correction
        weighs = correction.rollout_is != "none"
        weights = []
        for sample, log_probs in zip(samples, old, strict=True):
            if sample.rollout_log_probs is None:
                weights.append(torch.ones_like(log_probs))
                continue
            log_ratio = log_probs - torch.tensor(sample.rollout_log_probs).to(log_probs)
            weight = (
                importance_weights(log_ratio, [len(log_ratio)], correction) if weighs else torch.ones_like(log_probs)
            )
            weight = weight * kept(log_ratio, [len(log_ratio)], correction)
            mismatch.add(log_ratio, weight)
            weights.append(weight)
        return torch.cat(weights) if weighs or correction.rollout_rs != "none" else None

    def _reduce(self, sums: dict[str, torch.Tensor], counts: LossCounts) -> dict[str, float]:
        names = ["pg_loss", *TOKEN_SUMS] + (["kl_loss"] if self.spec.actor.use_kl_loss else [])
        values = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        for index, name in enumerate(names):
            values[index] += sums.get(name, 0.0)
        dist.all_reduce(values)
        metrics = dict(zip(names, values.tolist(), strict=True))
        return metrics | {name: metrics[name] / max(counts.tokens, 1.0) for name in TOKEN_SUMS}


def _old_log_probs(samples: list[Sample], current: Sequence[torch.Tensor], on_policy: bool) -> list[torch.Tensor]:
    """(T,) for each sample: its own, or the current ones, which are the same before the policy has moved."""
    return [
        now if on_policy or s.old_log_probs is None else s.old_log_probs.to(now)
        for s, now in zip(samples, current, strict=True)
    ]


def _token_advantages(samples: list[Sample]) -> list[float]:
    """One for each response token of the samples, in their order."""
    advantages: list[float] = []
    for sample in samples:
        one = sample.advantage
        advantages += one if isinstance(one, list) else [one] * len(sample.response_ids)
    return advantages


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows, without padding."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _fill(tensor: torch.Tensor, shards: ShardReader, name: str) -> None:
    """Copies this rank's rows of a tensor from a checkpoint."""
    local = _local(tensor)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local.copy_(shards.rows(name, offset[0], offset[0] + shape[0]))


def _fsdp_modules(model: nn.Module) -> list[tuple[str, FSDPModule]]:
    """The root, named '', then each decoder layer, with its name."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
