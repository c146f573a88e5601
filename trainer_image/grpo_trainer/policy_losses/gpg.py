"""GPG's loss (arXiv 2504.02546): plain REINFORCE. verl: `compute_policy_loss_gpg`."""

import torch

from grpo_api.spec.training import ActorSpec
from grpo_trainer.policy_losses import PolicyTokens, TokenLoss, policy_loss


@policy_loss("gpg")
def gpg(tokens: PolicyTokens, actor: ActorSpec) -> TokenLoss:
    """-A log pi, without ratio or clip."""
    nowhere = torch.zeros_like(tokens.advantages, dtype=torch.bool)
    return TokenLoss(-tokens.log_probs * tokens.advantages, nowhere, nowhere)
