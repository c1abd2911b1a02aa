"""Means with their error, percentiles and covariances, by llama.cpp's conventions where it has one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["BLOCK", "block_error", "covariance", "mean_and_error", "median", "percentile"]

BLOCK = 16  # neighbouring tokens whose errors are taken to be related


def mean_and_error(values: ArrayLike) -> tuple[float, float]:
    """Mean and its standard error, as if the values were independent; the error of fewer than 11 values is 0."""
    x = np.asarray(values, np.float64)
    if x.size == 0:
        return 0.0, 0.0
    mean = float(x.sum() / x.size)
    spread = float((x * x).sum() / x.size) - mean * mean
    return mean, math.sqrt(spread / (x.size - 1)) if spread > 0 and x.size > 10 else 0.0


def covariance(a: ArrayLike, b: ArrayLike) -> float:
    """Covariance of the means of two series of one length; 0 for fewer than 10 values."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if x.size < 10:
        return 0.0
    return float(((x * y).sum() / x.size - (x.sum() / x.size) * (y.sum() / y.size)) / (x.size - 1))


def block_error(values: ArrayLike, chunks: ArrayLike, block: int = BLOCK) -> float:
    """Standard error of the mean when neighbouring tokens are not independent.

    Tokens are put into blocks of `block` neighbours of one chunk, and blocks are taken to be independent: the error
    is that of the block sums. Unequal blocks (the end of a chunk) are allowed.

    Args:
        values: [n], in token order.
        chunks: [n], the chunk each belongs to.
        block: neighbours per block.

    Returns:
        The error, or 0 with fewer than two blocks.
    """
    x, home = np.asarray(values, np.float64), np.asarray(chunks)
    if x.size == 0:
        return 0.0
    starts = np.flatnonzero(np.r_[True, home[1:] != home[:-1]])
    inside = np.arange(x.size) - np.repeat(starts, np.diff(np.r_[starts, x.size]))
    edges = np.flatnonzero(inside % block == 0)
    sums = np.add.reduceat(x - x.mean(), edges)
    n = sums.size
    return float(math.sqrt(n / (n - 1) * float((sums * sums).sum())) / x.size) if n > 1 else 0.0


def percentile(ordered: NDArray[np.float32], fraction: float) -> float:
    """Value below which `fraction` of the ascending values lie, between neighbours by linear interpolation."""
    if fraction <= 0:
        return float(ordered[0])
    if fraction >= 1:
        return float(ordered[-1])
    place = np.float32(np.float32(fraction) * np.float32(ordered.size - 1))
    index = int(place)
    rest = float(place) - index
    return (1 - rest) * float(ordered[index]) + rest * float(ordered[min(index + 1, ordered.size - 1)])


def median(ordered: NDArray[np.float32]) -> float:
    """Median of ascending values."""
    half = ordered.size // 2
    return float(ordered[half]) if ordered.size % 2 else 0.5 * (float(ordered[half]) + float(ordered[half - 1]))
