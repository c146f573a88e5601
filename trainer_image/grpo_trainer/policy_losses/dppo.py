"""DPPO, divergence PPO with the binary approximations (arXiv 2602.04879).

verl: `compute_policy_loss_dppo_tv` and `compute_policy_loss_dppo_kl`. The clip ranges bound the divergence here,
not on the ratio, and `clipRatioC` truncates the ratio of every token; 20 is usual.
"""

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss, clip_range, policy_loss


@policy_loss("dppo_tv")
def dppo_tv(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """Total variation: a token is left out that moves the way its advantage asks for and whose probability has
    changed by more than the bound."""
    low, high = clip_range(actor)
    change = (tokens.log_probs.exp() - tokens.old_log_probs.exp()).detach()
    return _masked(tokens, actor, torch.where(tokens.advantages > 0, change <= high, change >= -low))


@policy_loss("dppo_kl")
def dppo_kl(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """KL of old and new, each taken as a coin that falls on this token or on any other."""
    low, high = clip_range(actor)
    new, old = tokens.log_probs.exp().detach(), tokens.old_log_probs.exp()
    others = (1.0 - old) * torch.log((1.0 - old + 1e-8) / (1.0 - new + 1e-8))
    divergence = old * -tokens.log_ratio.detach() + others
    keep = torch.where(tokens.advantages > 0, (divergence <= high) | (new <= old), (divergence <= low) | (new >= old))
    return _masked(tokens, actor, keep)


def _masked(tokens: PolicyTokens, actor: ActorSpec, keep: torch.Tensor) -> TokenLoss:
    """-A min(r, c) log pi at the tokens that are kept, the ratio without gradient."""
    ratio = tokens.ratio().detach()
    cost = -tokens.advantages * torch.clamp(ratio, max=actor.clip_ratio_c) * tokens.log_probs * keep
    return TokenLoss(cost, ~keep, (ratio > actor.clip_ratio_c) & keep)
