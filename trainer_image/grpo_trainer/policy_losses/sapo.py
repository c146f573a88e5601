"""SAPO, soft adaptive policy optimisation (arXiv 2511.20347). verl: `compute_policy_loss_sapo`."""

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss, policy_loss


@policy_loss("sapo", aggregation="seq-mean-token-mean")
def sapo(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """-A (4/tau) sigmoid(tau (r - 1)), with `tauPos` where A > 0 and `tauNeg` elsewhere: a smooth gate for the clip."""
    tau = torch.where(tokens.advantages > 0, actor.tau_pos, actor.tau_neg)
    cost = -tokens.advantages * torch.sigmoid(tau * (tokens.ratio() - 1.0)) * (4.0 / tau)
    nowhere = torch.zeros_like(cost, dtype=torch.bool)
    return TokenLoss(cost, nowhere, nowhere)
