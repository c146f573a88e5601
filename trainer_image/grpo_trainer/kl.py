"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

Schulman, "Approximating KL divergence" (2020); bounds and straight-through forms as in verl's `core_algos.kl_penalty`.
"""

import torch


def kl_penalty(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, kind: str) -> torch.Tensor:
    """(T,) penalties. `kl` is k1, `abs` its absolute value, `mse` k2, `low_var_kl` k3. Raises ValueError for others.

    With a `+` after it, the value is that estimator's and the gradient is k2's, whose expectation is the KL's own
    gradient, unlike that of k1 and k3.
    """
    value = _estimate(log_probs, ref_log_probs, kind.removesuffix("+"))
    if not kind.endswith("+"):
        return value
    straight = _estimate(log_probs, ref_log_probs, "mse")
    return straight - straight.detach() + value.detach()


def _estimate(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, kind: str) -> torch.Tensor:
    difference = log_probs - ref_log_probs
    if kind == "kl":
        return difference
    if kind == "abs":
        return difference.abs()
    if kind == "mse":
        return 0.5 * difference.square()
    if kind == "low_var_kl":
        log_ratio = torch.clamp(-difference, -20.0, 20.0)
        return torch.clamp(log_ratio.exp() - log_ratio - 1.0, -10.0, 10.0)
    raise ValueError(f"{kind!r} is no type of KL; use kl, abs, mse or low_var_kl, or kl+, abs+, low_var_kl+")
