"""Estimators and losses of the user's own, by import path."""

from pathlib import Path

import pytest
import torch

from grpo_api.errors import InvalidJobError
from grpo_api.spec.training import ActorSpec, AlgorithmSpec
from grpo_trainer.advantages import compute_advantages
from grpo_trainer.aggregate import LossCounts, token_weights
from grpo_trainer.errors import UserInputError
from grpo_trainer.losses import LossInputs, compute_loss
from grpo_trainer.preflight import check_algorithm
from tests.unit.trainer.trainer_support import make_job, make_spec

SOURCE = """
import torch
from grpo_trainer.policy_losses import TokenLoss

def best_of_step(batch, algorithm):
    return (batch.scores == batch.scores.max()).double()

def by_token(batch, algorithm):
    return [torch.arange(length) * score for length, score in zip(batch.lengths, batch.scores)]

def too_few(batch, algorithm):
    return batch.scores[:1]

def squares(tokens, actor):
    nowhere = torch.zeros_like(tokens.advantages, dtype=torch.bool)
    return TokenLoss(tokens.log_ratio.square(), nowhere, nowhere)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_formulas.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


def advantages(function: str) -> list[float | list[float] | None]:
    spec = make_spec(Path("/model"), algorithm={"advEstimatorPath": f"own_formulas:{function}"})
    check_algorithm(spec)
    return compute_advantages(spec, [1.0, 3.0, None, 3.0], [0, 0, 1, 2], [2, 3, 1, 1])


def test_an_estimator_of_the_users_own_is_taken_as_it_is() -> None:
    assert advantages("best_of_step") == [0.0, 1.0, None, 1.0]
    assert advantages("by_token") == [[0.0, 1.0], [0.0, 3.0, 6.0], None, [0.0]]
    with pytest.raises(UserInputError, match=r"too_few' returned 1 values .* for 3 responses: return a tensor"):
        advantages("too_few")


def test_a_loss_of_the_users_own() -> None:
    actor = ActorSpec(ppo_mini_batch_size=1, policy_loss={"loss_path": "own_formulas:squares"})
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    weights = token_weights("token-mean", [2], LossCounts(2, 1, 8))
    inputs = LossInputs(log_probs, torch.zeros(2), torch.ones(2), (2,), weights, weights, torch.zeros(2))
    compute_loss(inputs, actor).loss.backward()
    assert log_probs.grad.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own_formulas:nothing", "has no attribute 'nothing'; put the module into the image"),
        ("nowhere.at_all:f", "No module named 'nowhere'"),
        ("own_formulas:number", "is no function but a int"),
    ],
)
def test_what_cannot_be_imported_is_the_users_fault(path: str, says: str) -> None:
    for sections in ({"algorithm": {"advEstimatorPath": path}}, {"actor": {"policyLoss": {"lossPath": path}}}):
        with pytest.raises(UserInputError, match=says) as caught:
            check_algorithm(make_spec(Path("/model"), **sections))
        assert caught.value.exit_code == 65


def test_a_path_names_module_and_function() -> None:
    with pytest.raises(InvalidJobError, match="advEstimatorPath"):
        make_job("/model", algorithm={"advEstimatorPath": "own_formulas.best_of_step"})
    assert AlgorithmSpec(adv_estimator_path="a.b:c").adv_estimator_path == "a.b:c"
