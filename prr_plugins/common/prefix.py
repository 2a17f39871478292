"""How far two sequences agree."""

from __future__ import annotations


def common_prefix(one: str | list[int], other: str | list[int]) -> int:
    """Length of what two texts, or two lists of ids, begin with in common."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
