"""A against B: ratios of samples that were taken in turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "paired_ratio"]


@dataclass(frozen=True)
class Ratio:
    """Rate of B over rate of A.

    Attributes:
        median: median over the repeats.
        low, high: smallest and largest.
        clear: every repeat says the same (all above 1, or all below); with n repeats chance does that in one case of
            2^(n-1).
    """

    median: float
    low: float
    high: float
    clear: bool


def paired_ratio(times_a: Sequence[float], times_b: Sequence[float]) -> Ratio:
    """Ratio of rates from the times of the same work, sample i of both taken one after the other.

    Pairing takes out what changes slowly: clocks, temperature, other load on the machine.

    Raises:
        ValueError: different numbers of samples, or none.
    """
    if len(times_a) != len(times_b) or not times_a:
        raise ValueError(f"{len(times_a)} and {len(times_b)} samples cannot be paired")
    ratios = [a / b for a, b in zip(times_a, times_b, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), min(ratios) > 1 or max(ratios) < 1)
