"""DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4, equation 13). verl: the `dapo` reward manager."""

from grpo_api.spec.reward import OverlongBufferSpec


def overlong_penalty(tokens: int, max_response_length: int, spec: OverlongBufferSpec) -> float:
    """What is added to the reward of a response of so many tokens: 0 or less."""
    if not spec.enable:
        return 0.0
    beyond = tokens - (max_response_length - spec.len)
    return min(-beyond / spec.len * spec.penalty_factor, 0.0)
