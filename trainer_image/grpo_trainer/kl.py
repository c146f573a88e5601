"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

Schulman, "Approximating KL divergence" (2020); bounds as in verl's `core_algos.kl_penalty_forward`.
"""

import torch


def kl_penalty(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, kind: str) -> torch.Tensor:
    """(T,) penalties. `kl` is k1, `abs` its absolute value, `mse` k2, `low_var_kl` k3. Raises ValueError for others."""
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
    raise ValueError(f"kl_loss_type {kind!r} is none of kl, abs, mse, low_var_kl")
