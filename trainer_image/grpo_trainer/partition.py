"""Which rank gets which responses."""

from collections.abc import Sequence
from itertools import pairwise


def equal_runs(items: Sequence, parts: int) -> list[list]:
    """Cuts a sequence into runs whose lengths differ by one at most."""
    bounds = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[start:stop]) for start, stop in pairwise(bounds)]


def balanced(group_tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """Spreads groups, given by their tokens, over ranks: equally many each, the longest first to the emptiest rank.

    The number of groups must be a multiple of that of ranks.
    """
    share = len(group_tokens) // ranks
    parts: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for group in sorted(range(len(group_tokens)), key=lambda one: -group_tokens[one]):
        rank = min((r for r in range(ranks) if len(parts[r]) < share), key=lambda r: loads[r])
        parts[rank].append(group)
        loads[rank] += group_tokens[group]
    return parts
