"""The training loop, in the head pod: prompts, rewards and advantages here; tokens, gradients, weights on the ranks."""

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from grpo_api import metric_names
from grpo_api.job import GRPOJob
from grpo_api.names import TORCH_RENDEZVOUS_PORT, checkpoint_dir
from grpo_api.rewards.rows import RewardRow
from grpo_api.status import CheckpointStatus, Progress, percent
from grpo_trainer.advantages import compute_advantages
from grpo_trainer.checkpoint import CheckpointError, begin_anew
from grpo_trainer.checkpoint_files import CheckpointInfo
from grpo_trainer.data import PromptLoader
from grpo_trainer.data_mix import MixedLoader
from grpo_trainer.errors import PeerLostError, UserInputError
from grpo_trainer.greedy_baseline import add_greedy, split_greedy
from grpo_trainer.kl_control import KlInReward
from grpo_trainer.metrics import StepReport, TrainerMetrics, log_line, warnings
from grpo_trainer.partition import balanced, equal_runs
from grpo_trainer.progress import Pace, ProgressServer, progress_of, rfc3339, validated
from grpo_trainer.prompts import Prompt
from grpo_trainer.ray_gang import Gang
from grpo_trainer.rewards.overlong import overlong_penalty
from grpo_trainer.rewards.pool import RewardPool
from grpo_trainer.rewards.result import RewardResult, standard_deviations
from grpo_trainer.rollout.base import Request, Response, request_seed
from grpo_trainer.sample import Sample
from grpo_trainer.sampling import Sampled, sample_step
from grpo_trainer.validation import Validator

log = logging.getLogger(__name__)

MAX_UNREWARDED_STEPS = 3
"""So many steps in a row without a single reward end the job."""


@dataclass
class _Step:
    """What one step gathers."""

    number: int
    began: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start


class Controller:
    def __init__(
        self,
        job: GRPOJob,
        gang: Gang,
        *,
        loader: PromptLoader | MixedLoader,
        tokenizer: Any,
        pool: RewardPool,
        server: ProgressServer,
        metrics: TrainerMetrics,
        attempt: int,
        validator: Validator | None = None,
    ):
        self._spec, self._gang, self._loader, self._tokenizer = job.spec, gang, loader, tokenizer
        self._pool, self._server, self._metrics, self._attempt = pool, server, metrics, attempt
        self._validator = validator
        self._plan = job.batch_plan
        self._names = [function.name for function in job.spec.reward.functions]
        trainer = job.spec.trainer
        self._total = trainer.total_steps or loader.steps_per_epoch * (trainer.total_epochs or 1)
        self._run_id = str(job.metadata.get("uid") or job.name)
        self._spec_hash = _spec_hash(job)
        mounted = job.spec.checkpoint.claim_name or job.spec.checkpoint.claim_template
        self._directory = checkpoint_dir(job.spec.checkpoint.mount_path, job.namespace, job.name) if mounted else None
        self._done, self._tokens = 0, 0
        self._saved: CheckpointInfo | None = None
        self._pace = Pace()
        self._unrewarded = 0
        self._kl_in_reward = KlInReward(job.spec.algorithm) if job.spec.algorithm.use_kl_in_reward else None

    def run(self) -> None:
        """From the newest checkpoint, or step 0, to the last step. Returns when everything is on the volume."""
        self._server.set_phase("loading")
        self._server.update(progress=Progress(total_steps=self._total))
        self._metrics.set(metric_names.TOTAL_STEPS, self._total)
        self._gang.all("connect", self._gang.head_address, TORCH_RENDEZVOUS_PORT, self._directory)
        newest = self._newest()
        if newest is not None:
            self._check_usable(newest)
        if newest is not None and newest.step >= self._total and not self._must_validate(newest.step):
            self._take_over(newest)
            self._server.update(progress=Progress(step=self._total, total_steps=self._total, percent="100%"))
            log.info("%s holds step %d of %d: there is nothing left to do", newest.path, newest.step, self._total)
            return
        self._load(newest)
        self._server.set_phase("training")
        # Here, too, after a resume: what was interrupted in the validation after its checkpoint does it again.
        self._maybe_validate()
        while self._done < self._total:
            self._step(_Step(self._done + 1))
            self._maybe_validate()
        if self._directory is not None:
            self._server.set_phase("saving")
            self._finish_save(last=True)

    def _load(self, newest: CheckpointInfo | None) -> None:
        start = time.monotonic()
        self._gang.all("load_actor", self._total * self._plan.updates_per_step)
        log.info("model loaded in %.1f s", time.monotonic() - start)
        if newest is not None:
            self._resume(newest)
        self._metrics.set(metric_names.RESUMED_STEP, self._done)
        start = time.monotonic()
        self._gang.all("load_engine")
        if newest is not None:
            self._gang.all("sync")
        log.info("rollout engine (%s) up in %.1f s", self._spec.rollout.engine, time.monotonic() - start)

    def _newest(self) -> CheckpointInfo | None:
        """The checkpoint to go on from. A gang that restarts goes on from its own run's even under Never."""
        if self._directory is None:
            log.info("no checkpoints: the spec has neither checkpoint.claimName nor checkpoint.claimTemplate")
            return None
        if self._spec.checkpoint.resume == "Auto":
            return self._gang.first("checkpoint")
        return self._gang.first("checkpoint", self._run_id) if self._attempt else None

    def _check_usable(self, info: CheckpointInfo) -> None:
        """Raises UserInputError where going on from a checkpoint would train another model, or nothing at all."""
        model = {"path": self._spec.model.path, "revision": self._spec.model.revision}
        saved = model if info.model is None else info.model
        if changed := [name for name in model if saved.get(name) != model[name]]:
            what = " and ".join(
                f"model.{name} {saved.get(name) or 'unset'}, not {model[name] or 'unset'}" for name in changed
            )
            raise UserInputError(
                "CheckpointMismatch", f"{info.path} (step {info.step}) was made with {what}: {begin_anew(info.path)}"
            )
        if info.step >= self._total and info.run != self._run_id:
            field = "totalSteps" if self._spec.trainer.total_steps else "totalEpochs"
            raise UserInputError(
                "NothingToTrain",
                f"{info.path} of an earlier job of this name holds step {info.step}, and this job ends at step "
                f"{self._total}: raise trainer.{field} to go on from it; to begin anew, {begin_anew(info.path)}",
            )

    def _resume(self, info: CheckpointInfo) -> None:
        start = time.monotonic()
        state = self._gang.all("resume", info)[0]
        self._loader.load_state_dict(state["data"])
        if self._kl_in_reward:
            self._kl_in_reward.coefficient = state.get("kl_coef", self._kl_in_reward.coefficient)
        self._take_over(info)
        self._done, self._tokens = info.step, info.tokens
        done = {"step": info.step, "total_steps": self._total, "percent": percent(info.step, self._total)}
        progress = Progress(**state.get("validated", {}) | done)
        self._server.update(progress=progress, resumed_from_step=info.step)
        if info.spec_hash != self._spec_hash:
            log.warning("the spec differs from that of %s: going on with its weights under the new one", info.path)
        log.info("resumed from %s (step %d) in %.1f s", info.path, info.step, time.monotonic() - start)

    def _step(self, step: _Step) -> None:
        spec, gang = self._spec, self._gang
        sampled = sample_step(partial(self._draw, step), spec.algorithm.filter_groups, step.number, self._names)
        gang.all("rest")
        responses, result = sampled.responses, sampled.result
        self._check_rewards(step.number, result)
        buffer, longest = spec.reward.overlong_buffer, spec.data.max_response_length
        result.rewards = [
            None if reward is None else reward + overlong_penalty(len(one.token_ids), longest, buffer)
            for one, reward in zip(responses, result.rewards, strict=True)
        ]
        samples = self._samples(sampled)
        mini_batches = self._mini_batches(samples)
        on_policy = self._plan.updates_per_step == 1
        if not on_policy or self._kl_in_reward:
            with step.phase("old_log_prob"):
                self._log_probs(mini_batches, "old_log_probs", reference=False)
        if spec.has_reference:
            with step.phase("ref"):
                self._log_probs(mini_batches, "ref_log_probs", reference=True)
        reward_kl = self._set_advantages(samples, result, [one.baseline for one in responses])
        with step.phase("update"):
            updates = [
                gang.each("update", by_rank, on_policy=(epoch, number) == (0, 0))[0]
                for epoch in range(spec.actor.ppo_epochs)
                for number, by_rank in enumerate(mini_batches)
            ]
        with step.phase("sync"):
            gang.all("sync")
        self._done = step.number
        self._tokens += sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples)
        with step.phase("checkpoint"):
            self._maybe_save()
        self._report(step, responses, samples, result, updates, reward_kl, sampled.rounds)

    def _draw(self, step: _Step, number: int) -> tuple[list[Prompt], list[Response], RewardResult]:
        """The step's round of that number: prompts, responses and rewards."""
        prompts = self._loader.next_batch()
        with step.phase("rollout"):
            responses = self._roll_out(step.number, prompts, number * len(prompts))
        with step.phase("reward"):
            result = self._pool.score([self._row(prompts[one.group], one) for one in responses])
        if self._spec.algorithm.adv_estimator == "remax":
            responses, result = split_greedy(self._spec, responses, result)
        return prompts, responses, result

    def _roll_out(self, step: int, prompts: list[Prompt], before: int) -> list[Response]:
        """Responses by prompt, then number. `before` groups of the step have been sampled already: seeds differ."""
        rollout = self._spec.rollout
        requests = [
            Request(prompt.prompt_ids, group, number, request_seed(rollout.seed, step, before + group, number))
            for group, prompt in enumerate(prompts)
            for number in range(rollout.n)
        ]
        if self._spec.algorithm.adv_estimator == "remax":
            requests = add_greedy(requests, rollout.n)
        return self._generate(requests)

    def _generate(self, requests: list[Request]) -> list[Response]:
        engines = equal_runs(requests, self._plan.rollout_workers)
        size = self._spec.rollout.tensor_model_parallel_size
        answers = self._gang.each("generate", [one for one in engines for _ in range(size)])
        return [response for answer in answers[::size] for response in answer]

    def _must_validate(self, step: int) -> bool:
        return self._validator is not None and self._validator.is_due(step, self._total)

    def _maybe_validate(self) -> None:
        if self._validator is not None and self._must_validate(self._done):
            # The engine has just been given its weights and stays awake: the next step samples with the same ones.
            self._validator.run(self._done, self._generate, self._pool.score, self._server, self._metrics)

    def _row(self, prompt: Prompt, response: Response) -> RewardRow:
        text = self._tokenizer.decode(response.token_ids, skip_special_tokens=True)
        return prompt.reward_row(text, len(response.token_ids))

    def _check_rewards(self, step: int, result: RewardResult) -> None:
        """Raises UserInputError where there was nothing to train on for too many steps in a row."""
        self._unrewarded = 0 if any(reward is not None for reward in result.rewards) else self._unrewarded + 1
        if self._unrewarded == MAX_UNREWARDED_STEPS:
            causes = ", ".join(f"{name}: {count} {cause}" for (name, cause), count in result.errors.items())
            raise UserInputError(
                "RewardError",
                f"no response had a reward in {self._unrewarded} steps in a row, so nothing was trained; in step "
                f"{step} {len(result.rewards)} samples failed ({causes}), and the log shows one of each: correct the "
                "reward function (`grpoctl reward try FILE` runs it)",
            )

    def _samples(self, sampled: Sampled) -> list[Sample]:
        """Without advantages."""
        without_truncated = self._spec.algorithm.mask_truncated_responses
        return [
            Sample(
                sampled.prompts[one.group].prompt_ids,
                one.token_ids,
                one.group,
                rollout_log_probs=one.log_probs,
                mask=reward is not None and not (without_truncated and one.truncated) and one.group not in sampled.fill,
            )
            for one, reward in zip(sampled.responses, sampled.result.rewards, strict=True)
        ]

    def _set_advantages(self, samples: list[Sample], result: RewardResult, baselines: list[float]) -> float | None:
        """Returns the KL that was taken off the rewards, where it is."""
        penalties, kl = self._kl_in_reward.penalties(samples) if self._kl_in_reward else (None, None)
        advantages = compute_advantages(
            self._spec,
            result.rewards,
            [sample.group for sample in samples],
            [len(sample.response_ids) for sample in samples],
            baselines=baselines,
            token_penalties=penalties,
            function_scores=result.function_scores or None,
        )
        for sample, advantage in zip(samples, advantages, strict=True):
            sample.advantage = advantage or 0.0
        return kl

    def _mini_batches(self, samples: list[Sample]) -> list[list[list[Sample]]]:
        """Samples by mini-batch and rank. Groups stay whole, so that each prompt is computed once, unless their number
        is no multiple of that of ranks."""
        n, ranks = self._spec.rollout.n, self._gang.size
        groups = [samples[start : start + n] for start in range(0, len(samples), n)]
        size = self._spec.actor.ppo_mini_batch_size
        result = []
        for start in range(0, len(groups), size):
            part = groups[start : start + size]
            if len(part) % ranks:
                result.append(equal_runs([sample for group in part for sample in group], ranks))
                continue
            tokens = [len(g[0].prompt_ids) + sum(len(sample.response_ids) for sample in g) for g in part]
            result.append([[s for index in one for s in part[index]] for one in balanced(tokens, ranks)])
        return result

    def _log_probs(self, mini_batches: list[list[list[Sample]]], name: str, *, reference: bool) -> None:
        by_rank = [[s for part in parts for s in part] for parts in zip(*mini_batches, strict=True)]
        for samples, values in zip(by_rank, self._gang.each("log_probs", by_rank, reference=reference), strict=True):
            for sample, value in zip(samples, values, strict=True):
                setattr(sample, name, value)

    def _maybe_save(self) -> None:
        if self._directory is None:
            return
        frequency = self._spec.trainer.save_freq
        due = self._done == self._total or (frequency > 0 and self._done % frequency == 0)
        if due:
            self._finish_save()
            state: dict[str, Any] = {
                "data": self._loader.state_dict(),
                "validated": validated(self._server.report.progress),
            }
            if self._kl_in_reward:
                state["kl_coef"] = self._kl_in_reward.coefficient
            self._gang.all("save", self._done, state, self._tokens, self._spec_hash, self._run_id)
        else:
            self._take_over(self._gang.first("checkpoint", self._run_id))

    def _finish_save(self, last: bool = False) -> None:
        """Waits for the save under way. One that failed is told; only the last one's failure ends the job."""
        try:
            self._gang.all("wait_saved")
        except CheckpointError as error:
            if last:
                raise PeerLostError("CheckpointFailed", str(error)) from error
            log.error("%s; going on with older ones", error)
        self._take_over(self._gang.first("checkpoint", self._run_id))

    def _take_over(self, info: CheckpointInfo | None) -> None:
        """Tells the outside of the newest complete checkpoint."""
        if info is None or info == self._saved:
            return
        if self._done and info.run == self._run_id and info.step > (self._saved.step if self._saved else 0):
            log.info("checkpoint %s saved (%d MB)", info.path.name, info.size_bytes // 10**6)
        self._saved = info
        self._metrics.record_checkpoint(info.step, info.saved_at, info.size_bytes)
        self._server.update(
            checkpoint=CheckpointStatus(
                step=info.step, time=rfc3339(info.saved_at), path=str(info.path), size_bytes=info.size_bytes
            )
        )

    def _report(
        self,
        step: _Step,
        responses: list[Response],
        samples: list[Sample],
        result: RewardResult,
        updates: list[dict[str, float]],
        reward_kl: float | None,
        sampling_rounds: int,
    ) -> None:
        memory = dict(enumerate(self._gang.all("memory")))
        seconds = time.monotonic() - step.began
        self._pace.add(seconds)
        now = time.time()

        def mean(name: str) -> float | None:
            values = [update[name] for update in updates if name in update]
            return fmean(values) if values else None

        def by_rank(name: str) -> dict[int, int]:
            return {rank: found[name] for rank, found in memory.items() if name in found}

        report = StepReport(
            step=step.number,
            total_steps=self._total,
            step_seconds=seconds,
            phase_seconds=step.seconds if step.seconds["checkpoint"] > 0.1 else _without(step.seconds, "checkpoint"),
            rewards=[reward for reward in result.rewards if reward is not None],
            prompt_tokens=sum(len(sample.prompt_ids) for sample in samples),
            response_tokens=sum(len(sample.response_ids) for sample in samples),
            responses=len(samples),
            truncated=fmean(one.truncated for one in responses),
            zero_std_groups=_zero_std_groups(result.rewards, [one.group for one in responses]),
            function_means=result.function_means,
            function_stds=standard_deviations(self._names, result.function_scores) if result.function_scores else {},
            function_seconds=result.function_seconds,
            reward_errors=result.errors,
            loss=mean("pg_loss"),
            kl=mean("kl_loss") if self._spec.actor.use_kl_loss else reward_kl,
            kl_coefficient=self._kl_in_reward.coefficient if self._kl_in_reward else None,
            entropy=mean("entropy"),
            clip_fraction=mean("pg_clipfrac"),
            grad_norm=mean("grad_norm"),
            learning_rate=updates[-1]["lr"],
            rollout_mismatch=updates[0].get("rollout_log_prob_diff_mean"),
            rollout_kl=updates[0].get("rollout_k3_kl"),
            rollout_weight=updates[0].get("rollout_is_mean"),
            rollout_sample_size=updates[0].get("rollout_is_eff_sample_size"),
            sampling_rounds=sampling_rounds,
            gpu_memory=by_rank("gpu"),
            gpu_memory_peak=by_rank("gpu_peak"),
            host_memory=by_rank("host"),
            overlong_prompts=self._loader.overlong,
            eta_seconds=self._pace.eta_seconds(self._total - step.number),
        )
        print(log_line(report), flush=True)  # bare, so that whoever reads the log finds steps at the lines' beginning
        for text in warnings(report):
            log.warning("step %d: %s", step.number, text)
        self._metrics.record_step(report, now)
        self._server.update(progress=progress_of(report, now))


def _without(seconds: dict[str, float], name: str) -> dict[str, float]:
    return {key: value for key, value in seconds.items() if key != name}


def _zero_std_groups(rewards: list[float | None], groups: list[int]) -> float:
    """Share of groups whose rewards are all equal; a group without any counts as such."""
    found: dict[int, set[float]] = {group: set() for group in groups}
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            found[group].add(reward)
    return fmean(len(values) < 2 for values in found.values())


def _spec_hash(job: GRPOJob) -> str:
    """Of the sections that decide what is learned, without their fields for validation."""
    spec = job.dump()["spec"]
    what = {
        name: {key: value for key, value in spec[name].items() if not key.startswith("val")}
        for name in ("model", "data", "reward", "algorithm", "rollout", "actor", "ref")
    }
    return hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=8).hexdigest()
