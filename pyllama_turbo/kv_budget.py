"""The best pair of KV types for a number of bits a value, from how exactly the library's own codecs store values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from . import kv

__all__ = ["BUDGETS", "Choice", "distortion", "recommend"]

BUDGETS = (2.5, 3.0, 3.5, 4.0, 4.5, 6.0, 6.5, 9.0)
# An error of the keys counts for so many of the values. With it, what the pairs of docs/quality.md cost on four models
# follows from the errors of their two types to 20 % (two-bit values cost more than that).
K_WEIGHT = 2.5
_ROWS = 256


@dataclass(frozen=True)
class Choice:
    """A recommendation.

    Attributes:
        budget: bits a value allowed, the mean of K and V.
        k, v: the pair; K never has fewer bits than V.
    """

    budget: float
    k: kv.KVType
    v: kv.KVType

    @property
    def bits(self) -> float:
        """Bits a value takes, the mean of K and V."""
        return (self.k.bits + self.v.bits) / 2


@lru_cache(maxsize=64)
def distortion(name: str, row: int = 128) -> float:
    """Mean squared error of a type, as a share of the variance of what is stored.

    Measured on normally distributed values, which is what keys and values are once they are rotated.

    Args:
        name: a type.
        row: values of a head.
    """
    import numpy as np

    x = np.random.default_rng(1).standard_normal((_ROWS, row), dtype=np.float32)
    stored = kv.decode(kv.encode(x, name), name, row)
    return float(((stored - x) ** 2).mean() / (x**2).mean())


def recommend(kinds: Sequence[kv.KVType], budgets: Sequence[float] = BUDGETS) -> tuple[Choice, ...]:
    """For each budget the pair that disturbs attention least, errors of K weighed `K_WEIGHT` times.

    Budgets that no pair fits, or whose pair is that of a smaller budget, are left out.
    """
    row = max((kind.block_values for kind in kinds), default=128)
    error = {kind.name: distortion(kind.name, max(row, 64)) for kind in kinds}
    pairs = [(k, v) for k in kinds for v in kinds if k.bits >= v.bits]
    found: list[Choice] = []
    for budget in budgets:
        within = [pair for pair in pairs if (pair[0].bits + pair[1].bits) / 2 <= budget]
        if not within:
            continue
        k, v = min(within, key=lambda p: (K_WEIGHT * error[p[0].name] + error[p[1].name], p[0].bits + p[1].bits))
        if not found or (found[-1].k, found[-1].v) != (k, v):
            found.append(Choice(budget, k, v))
    return tuple(found)
