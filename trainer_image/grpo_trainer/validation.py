"""Validation: responses to held-out prompts, scored as in training; nothing is learned from them.

It moves nothing of the training: responses have seeds of their own, the same in every validation, and the engine keeps
the weights that the next step samples with.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from grpo_api import metric_names as names
from grpo_api.job import GRPOJobSpec
from grpo_api.rewards.rows import RewardRow
from grpo_api.status import Progress
from grpo_trainer.dataset import open_datasets
from grpo_trainer.metrics import TrainerMetrics
from grpo_trainer.progress import ProgressServer, rfc3339
from grpo_trainer.prompts import Prompt
from grpo_trainer.rewards.result import RewardResult
from grpo_trainer.rollout.base import Request, Response, Sampling, request_seed
from grpo_trainer.validation_metrics import statistics
from grpo_trainer.validation_report import REWARD, ValidationReport, log_lines, record

log = logging.getLogger(__name__)

MAX_SOURCES = 64
"""Data sources that get metrics of their own; with more of them all count as one, `all`."""
_SEED_STEP = 0
"""The step in the seeds of the first dataset's responses, and less by one for each that follows. The training counts
from 1, so that none of its responses has the same."""


class Validator:
    """The validation set and how it is sampled. Making one reads and checks its rows: raises UserInputError."""

    def __init__(self, spec: GRPOJobSpec, tokenizer: Any) -> None:
        assert spec.data.val is not None
        self._spec, self._tokenizer = spec, tokenizer
        self._datasets = open_datasets(spec.data, spec.data.val, tokenizer, "data.val")
        self.largest_token = max(dataset.largest_token for dataset in self._datasets)
        rows = [(number, index) for number, dataset in enumerate(self._datasets) for index in dataset.kept.tolist()]
        count = min(len(rows), spec.data.val_max_samples or len(rows))
        self._rows = [rows[place * len(rows) // count] for place in range(count)]
        """Dataset and position of each row that is taken."""
        kwargs = spec.rollout.val_kwargs
        self._n, self._sampling = kwargs.n, Sampling(kwargs.temperature, kwargs.top_p, kwargs.top_k)

    def samples(self) -> list[Prompt]:
        """The first usable row of each dataset, for trial calls."""
        return [dataset.sample() for dataset in self._datasets]

    def is_due(self, step: int, total_steps: int) -> bool:
        """Whether the policy after that many steps is validated."""
        trainer = self._spec.trainer
        if step == 0:
            return trainer.val_before_train
        return trainer.test_freq > 0 and (step == total_steps or step % trainer.test_freq == 0)

    def run(
        self,
        step: int,
        generate: Callable[[list[Request]], list[Response]],
        score: Callable[[Sequence[RewardRow]], RewardResult],
        server: ProgressServer,
        metrics: TrainerMetrics,
    ) -> None:
        """Samples and scores all prompts with the policy after `step` steps; tells the log, /metrics and /progress."""

        def show_life() -> None:
            # A validation may take longer than a step, and is no stall.
            now = time.time()
            metrics.set(names.LAST_STEP_TIMESTAMP, now)
            _tell(server, last_step_time=rfc3339(now))

        report = self._measure(step, generate, score, show_life)
        for line in log_lines(report):
            print(line, flush=True)
        if report.reward_mean is None:
            log.warning("validation after step %d: no response has a reward (see the errors above)", step)
        record(report, metrics)
        _tell(
            server, val_step=step, val_reward_mean=None if report.reward_mean is None else round(report.reward_mean, 4)
        )

    def _measure(
        self,
        step: int,
        generate: Callable[[list[Request]], list[Response]],
        score: Callable[[Sequence[RewardRow]], RewardResult],
        batch_done: Callable[[], None],
    ) -> ValidationReport:
        began = time.monotonic()
        variables = [REWARD] + [one.name for one in self._spec.reward.functions if len(self._spec.reward.functions) > 1]
        scores: dict[str, dict[str, list[list[float]]]] = {}
        lengths: list[int] = []
        cut: list[bool] = []
        errors: Counter[tuple[str, str]] = Counter()
        size = self._spec.data.val_batch_size
        for start in range(0, len(self._rows), size):
            prompts, steps = self._prompts(self._rows[start : start + size])
            responses = generate(self._requests(prompts, steps))
            texts = [self._tokenizer.decode(one.token_ids, skip_special_tokens=True) for one in responses]
            rows = [
                prompts[one.group].reward_row(text, len(one.token_ids))
                for one, text in zip(responses, texts, strict=True)
            ]
            result = score(rows)
            errors.update(result.errors)
            columns = [result.rewards, *result.function_scores]
            for number, prompt in enumerate(prompts):
                own = range(number * self._n, (number + 1) * self._n)
                by_variable = scores.setdefault(prompt.data_source, {variable: [] for variable in variables})
                for variable, column in zip(variables, columns, strict=False):
                    by_variable[variable].append([value for i in own if (value := column[i]) is not None])
            lengths += [len(one.token_ids) for one in responses]
            cut += [one.truncated for one in responses]
            batch_done()
        scores = _few_sources(scores)
        means = [fmean(own) for source in scores.values() for own in source[REWARD] if own]
        return ValidationReport(
            step=step,
            seconds=time.monotonic() - began,
            prompts=sum(len(source[REWARD]) for source in scores.values()),
            reward_mean=fmean(means) if means else None,
            values={
                source: {variable: statistics(own, self._n) for variable, own in by_variable.items()}
                for source, by_variable in scores.items()
            },
            response_length=fmean(lengths) if lengths else 0.0,
            truncated=fmean(cut) if cut else 0.0,
            overlong_prompts=sum(dataset.overlong for dataset in self._datasets),
            errors=errors,
        )

    def _prompts(self, rows: list[tuple[int, int]]) -> tuple[list[Prompt], list[int]]:
        """Prompts, and the step that the seeds of each one's responses are of."""
        prompts: list[Prompt] = []
        steps: list[int] = []
        for number, dataset in enumerate(self._datasets):
            prompts += dataset.prompts([index for one, index in rows if one == number])
            steps += [_SEED_STEP - number] * (len(prompts) - len(steps))
        return prompts, steps

    def _requests(self, prompts: list[Prompt], steps: list[int]) -> list[Request]:
        """By prompt, then number. A seed is that of the row, whatever the batches' size."""
        seed = self._spec.rollout.seed
        return [
            Request(prompt.prompt_ids, group, number, request_seed(seed, step, prompt.index, number), self._sampling)
            for group, (prompt, step) in enumerate(zip(prompts, steps, strict=True))
            for number in range(self._n)
        ]


def _tell(server: ProgressServer, **fields: Any) -> None:
    server.update(progress=(server.report.progress or Progress()).model_copy(update=fields))


def _few_sources(scores: dict[str, dict[str, list[list[float]]]]) -> dict[str, dict[str, list[list[float]]]]:
    if len(scores) <= MAX_SOURCES:
        return scores
    log.warning(
        "the validation rows have %d data sources, and metrics of their own go to %d at most: all count as one (all). "
        "Set data.dataSourceKey to a column with fewer values",
        len(scores), MAX_SOURCES,
    )  # fmt: skip
    variables = next(iter(scores.values()))
    return {"all": {name: [own for source in scores.values() for own in source[name]] for name in variables}}
