"""A step that computed everything a trainer can report, and a validation."""

from collections import Counter

from grpo_trainer.metrics import StepReport
from grpo_trainer.validation_report import ValidationReport

REPORT = StepReport(
    step=3,
    total_steps=20,
    step_seconds=18.2,
    phase_seconds={"rollout": 4.1, "reward": 0.05, "update": 9.8, "sync": 3.9},
    rewards=[1.0, 0.0, 0.0, 0.0],
    prompt_tokens=2816,
    response_tokens=12,
    responses=4,
    truncated=0.25,
    zero_std_groups=0.5,
    function_means={"correct": 0.25},
    function_stds={"correct": 0.433},
    function_seconds={"correct": 0.09},
    reward_errors={("correct", "timeout"): 2},
    loss=-0.0123,
    kl=0.00042,
    kl_coefficient=0.001,
    entropy=1.25,
    clip_fraction=0.0,
    grad_norm=1.2,
    learning_rate=3e-5,
    rollout_mismatch=0.0012,
    rollout_kl=0.00002,
    rollout_weight=0.999,
    rollout_sample_size=0.998,
    gpu_memory={0: 100, 1: 101},
    gpu_memory_peak={0: 200, 1: 201},
    host_memory={0: 300, 1: 301},
    eta_seconds=310.0,
)

VALIDATION = ValidationReport(
    step=20,
    seconds=8.25,
    prompts=3,
    reward_mean=0.5,
    values={
        "openai/gsm8k": {
            "reward": {"mean@2": 0.5, "std@2": 0.25, "best@2/mean": 0.75, "best@2/std": 0.2, "pass@1": 0.5}
        },
        "my rows": {"reward": {"mean@2": 1.0, "std@2": 0.0, "best@2/mean": 1.0, "best@2/std": 0.0, "pass@1": 1.0}},
    },
    response_length=31.5,
    truncated=0.125,
    errors=Counter({("correct", "none"): 1}),
)
