"""What the scores of a validation say, under verl's names (`process_validation_metrics` of verl 0.9,
verl/trainer/ppo/metric_utils.py).

verl estimates the best and the worst of k responses by drawing k of them 1000 times, with replacement. The mean and the
deviation of these draws have a closed form, which is used here: no noise, and no dependence on a seed.
"""

from collections.abc import Sequence
from math import comb, sqrt
from statistics import fmean, pstdev


def statistics(prompts: Sequence[Sequence[float]], n: int) -> dict[str, float]:
    """Statistics of one variable by name, each a mean over prompts.

    `prompts` holds the scores of each prompt's responses, `n` of them, or fewer where some have none. `mean@n`; of
    several responses also `std@n`, and for k = 2, 4, 8, ... and n `best@k/mean`, `best@k/std`, `worst@k/mean` and
    `worst@k/std`. Where every score is 0 or 1, `pass@k` for these k and 1, over prompts with k scores at least.
    """
    found: dict[str, list[float]] = {}
    binary = all(score in (0.0, 1.0) for scores in prompts for score in scores)
    for scores in prompts:
        if not scores:
            continue
        ordered = sorted(scores)
        values = {f"mean@{n}": fmean(ordered)}
        if n > 1:
            values[f"std@{n}"] = pstdev(ordered)
        for k in _sizes(n):
            values[f"best@{k}/mean"], values[f"best@{k}/std"] = _best_of(ordered, k)
            values[f"worst@{k}/mean"], values[f"worst@{k}/std"] = _best_of(ordered[::-1], k)
        if binary:
            values |= {
                f"pass@{k}": pass_at(len(ordered), int(sum(ordered)), k) for k in {1, *_sizes(n)} if k <= len(ordered)
            }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}


def pass_at(n: int, c: int, k: int) -> float:
    """Probability that one of k responses is right, from n of which c are: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021,
    arXiv 2107.03374, equation 1; unbiased)."""
    return 1.0 - comb(n - c, k) / comb(n, k)


def _sizes(n: int) -> list[int]:
    """verl's: the powers of 2 below n, and n; none for 1."""
    return [] if n == 1 else [2**power for power in range(1, n.bit_length()) if 2**power < n] + [n]


def _best_of(ordered: Sequence[float], k: int) -> tuple[float, float]:
    """(mean, standard deviation) of the last in order among k draws with replacement.

    It is at most the i-th of m with probability (i/m)^k.
    """
    m = len(ordered)
    shares = [(i / m) ** k - ((i - 1) / m) ** k for i in range(1, m + 1)]
    mean = sum(share * score for share, score in zip(shares, ordered, strict=True))
    square = sum(share * (score - mean) ** 2 for share, score in zip(shares, ordered, strict=True))
    return mean, sqrt(square)
