"""Every trainer metric reaches the registry under its contract name and labels; the log line reads as documented."""

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from grpo_api.metric_names import JOB_LABELS, RESUMED_STEP, TRAINER_METRICS
from grpo_trainer.metrics import TrainerMetrics, log_line, warnings
from grpo_trainer.validation_report import log_lines, record
from tests.step_report import REPORT, VALIDATION


def scrape(metrics: TrainerMetrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by sample name and by the labels other than the job's, in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert [labels.pop(key) for key in JOB_LABELS] == ["team", "arithmetic"]
            found.setdefault(sample.name, {})[tuple(labels.values())] = sample.value
    return found


def test_every_metric_of_the_contract_is_exported():
    metrics = TrainerMetrics("team", "arithmetic")
    metrics.record_step(REPORT, 1000.0)
    metrics.record_checkpoint(3, 1001.0, 4096)
    metrics.set(RESUMED_STEP, 0)
    record(VALIDATION, metrics)
    assert set(scrape(metrics)) == {metric.name for metric in TRAINER_METRICS}


def test_values():
    metrics = TrainerMetrics("team", "arithmetic")
    metrics.record_step(REPORT, 1000.0)
    metrics.record_step(replace(REPORT, step=4, kl=None, reward_errors={}), 1020.0)
    found = scrape(metrics)
    assert found["grpo_step"] == {(): 4}
    assert found["grpo_reward_mean"] == {(): 0.25}
    assert found["grpo_reward_std"][()] == pytest.approx(0.4330127)
    assert found["grpo_reward_function_mean"] == {("correct",): 0.25}
    assert found["grpo_reward_function_std"] == {("correct",): 0.433}
    assert found["grpo_reward_function_seconds_total"] == {("correct",): 0.18}
    assert found["grpo_reward_responses_per_second"] == {(): 80}
    errors = {
        (cause, "correct"): 2 * (cause == "timeout") for cause in ("exception", "timeout", "crash", "none", "nan")
    }
    assert found["grpo_reward_errors_total"] == errors
    assert found["grpo_step_duration_seconds"][("step",)] == 18.2
    assert found["grpo_phase_seconds_total"][("update",)] == pytest.approx(19.6)
    assert found["grpo_tokens_total"] == {("prompt",): 5632, ("response",): 24}
    assert found["grpo_throughput_tokens_per_second"][()] == pytest.approx(2828 / 18.2)
    assert found["grpo_response_length_mean_tokens"] == {(): 3}
    assert found["grpo_kl_mean"] == {(): 0.00042}
    assert found["grpo_host_memory_bytes"] == {("0",): 300, ("1",): 301}
    assert found["grpo_last_step_timestamp_seconds"] == {(): 1020}


def test_what_was_not_computed_is_absent():
    metrics = TrainerMetrics("team", "arithmetic")
    metrics.record_step(replace(REPORT, kl=None, rewards=[], gpu_memory={}, gpu_memory_peak={}), 1000.0)
    found = scrape(metrics)
    assert not {"grpo_kl_mean", "grpo_reward_mean", "grpo_gpu_memory_peak_bytes", "grpo_checkpoint_step"} & set(found)


def test_log_line():
    assert log_line(REPORT) == (
        "step=3/20 reward/mean=0.25 reward/std=0.433 tokens_per_s=155 step_s=18.2 eta_s=310 rollout_s=4.1 "
        "reward_s=0.05 update_s=9.8 sync_s=3.9 loss=-0.012 kl=0.00042 kl_coef=0.001 entropy=1.25 clip_fraction=0 "
        "grad_norm=1.2 lr=3e-05 response_len=3 truncated=0.25 zero_std=0.5 rollout_mismatch=0.001 "
        "rollout_kl=2e-05 reward_errors/correct/timeout=2"
    )
    two = replace(REPORT, kl=None, function_means={"correct": 0.5, "short": 1.0}, reward_errors={})
    assert log_line(two).endswith(
        "rollout_mismatch=0.001 rollout_kl=2e-05 reward/correct=0.5 reward/short=1 reward/correct/std=0.433"
    )
    assert " kl=" not in log_line(two)


def test_warnings():
    assert warnings(REPORT) == []
    assert "data.maxResponseLength" in warnings(replace(REPORT, truncated=1.0))[0]
    assert "teaches nothing" in warnings(replace(REPORT, zero_std_groups=1.0))[0]
    assert "no response has a reward" in warnings(replace(REPORT, rewards=[]))[0]


def test_a_validation_in_the_log():
    assert log_lines(VALIDATION) == [
        "validation step=20 prompts=3 seconds=8.25 response_len=31.5 truncated=0.125 reward_errors/correct/none=1 "
        "val-core/openai/gsm8k/reward/mean@2=0.5 val-core/openai/gsm8k/reward/best@2/mean=0.75 "
        "val-core/openai/gsm8k/reward/best@2/std=0.2 "
        "val-core/my_rows/reward/mean@2=1 val-core/my_rows/reward/best@2/mean=1 val-core/my_rows/reward/best@2/std=0",
        "validation step=20 val-aux/openai/gsm8k/reward/std@2=0.25 val-aux/openai/gsm8k/reward/pass@1=0.5",
        "validation step=20 val-aux/my_rows/reward/std@2=0 val-aux/my_rows/reward/pass@1=1",
    ]


def test_acc_is_the_core_where_a_function_is_called_so():
    values = {"a": {"reward": {"mean@1": 0.5}, "acc": {"mean@1": 1.0}}}
    assert [
        line.partition("truncated=0.125 ")[2] or line
        for line in log_lines(replace(VALIDATION, values=values, errors={}))
    ] == [
        "val-core/a/acc/mean@1=1",
        "validation step=20 val-aux/a/reward/mean@1=0.5",
    ]


def test_a_validation_in_the_metrics():
    metrics = TrainerMetrics("team", "arithmetic")
    record(VALIDATION, metrics)
    found = scrape(metrics)
    assert found["grpo_validation_step"] == {(): 20}
    assert found["grpo_validation_score"] == {
        (source, statistic, "reward"): value
        for source, statistic, value in (
            ("openai/gsm8k", "mean@2", 0.5),
            ("openai/gsm8k", "best@2/mean", 0.75),
            ("openai/gsm8k", "pass@1", 0.5),
            ("my rows", "mean@2", 1.0),
            ("my rows", "best@2/mean", 1.0),
            ("my rows", "pass@1", 1.0),
        )
    }
    assert found["grpo_step_duration_seconds"] == {("validation",): 8.25}
    assert found["grpo_reward_errors_total"][("none", "correct")] == 1
