"""From scores of single tokens to the numbers of a run: perplexity, KL divergence, same-top, change of probability.

KL divergence of a compressed cache against an f16 cache of the same model and library says what the compression does
to the model's predictions; perplexity alone does not (errors that help and errors that hurt cancel in it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .softmax import TokenRow
from .stats import block_error, covariance, mean_and_error, median, percentile

__all__ = ["DP_PERCENTILES", "KLD_PERCENTILES", "Divergence", "TokenScores", "summarise"]

KLD_PERCENTILES = (0.999, 0.99, 0.95, 0.90, 0.50, 0.10, 0.05, 0.01, 0.001)
DP_PERCENTILES = (0.999, 0.99, 0.95, 0.90, 0.75, 0.50, 0.25, 0.10, 0.05, 0.01, 0.001)


@dataclass
class TokenScores:
    """Scores of tokens in text order; each array is [n]. `chunk` says which stretch of text a token belongs to."""

    nll: NDArray[np.float32]
    nll_base: NDArray[np.float32]
    kld: NDArray[np.float64]
    dp: NDArray[np.float32]
    same_top: NDArray[np.bool_]
    chunk: NDArray[np.int32]

    NAMES: ClassVar[tuple[str, ...]] = ("nll", "nll_base", "kld", "dp", "same_top", "chunk")

    @classmethod
    def empty(cls, n_chunk: int, per_chunk: int) -> TokenScores:
        """Room for all tokens of a plan, in text order."""
        n = n_chunk * per_chunk
        return cls(
            nll=np.zeros(n, np.float32),
            nll_base=np.zeros(n, np.float32),
            kld=np.zeros(n, np.float64),
            dp=np.zeros(n, np.float32),
            same_top=np.zeros(n, np.bool_),
            chunk=np.repeat(np.arange(n_chunk, dtype=np.int32), per_chunk),
        )

    def put(self, places: NDArray[np.int64], row: TokenRow) -> None:
        """Store the scores of tokens `places`."""
        for name in self.NAMES[:-1]:
            getattr(self, name)[places] = getattr(row, name)

    def head(self, n: int) -> TokenScores:
        """The first `n` tokens."""
        return TokenScores(*(getattr(self, name)[:n] for name in self.NAMES))

    def __len__(self) -> int:
        return len(self.nll)


@dataclass(frozen=True)
class Divergence:
    """A run against its base.

    `_err` is the standard error of independent tokens (what llama.cpp prints), `_se` that of blocks of 16 neighbouring
    tokens, which is larger where errors come in runs. Divergences are in nats, probabilities and shares in 0..1.

    Attributes:
        n_tokens: scored tokens.
        ppl, ppl_base: perplexity of the run and of its base.
        ln_ratio: mean of ln(ppl / ppl_base).
        correlation: of the log-likelihoods of run and base.
        kld_mean: mean KL divergence of the base against the run.
        kld_percentiles: fraction -> KL divergence.
        dp_mean, dp_rms: change of the probability of the token that came next, mean and root mean square.
        dp_percentiles: fraction -> change.
        same_top: share of tokens where both prefer the same token.
    """

    n_tokens: int
    ppl: float
    ppl_err: float
    ppl_base: float
    ppl_base_err: float
    ln_ratio: float
    ln_ratio_err: float
    correlation: float
    kld_mean: float
    kld_err: float
    kld_se: float
    kld_max: float
    kld_min: float
    dp_mean: float
    dp_err: float
    dp_rms: float
    dp_rms_err: float
    dp_max: float
    dp_min: float
    same_top: float
    same_top_err: float
    kld_percentiles: dict[str, float] = field(default_factory=dict)
    dp_percentiles: dict[str, float] = field(default_factory=dict)

    @property
    def kld_median(self) -> float:
        """Median KL divergence."""
        return self.kld_percentiles["0.5"]

    @property
    def kld_999(self) -> float:
        """KL divergence that one token in a thousand exceeds."""
        return self.kld_percentiles["0.999"]

    @property
    def ppl_ratio(self) -> tuple[float, float]:
        """ppl / ppl_base and its error."""
        ratio = math.exp(self.ln_ratio)
        return ratio, ratio * self.ln_ratio_err


def _percentiles(values: NDArray[np.float32], fractions: Sequence[float]) -> dict[str, float]:
    return {f"{f:g}": median(values) if f == 0.5 else percentile(values, f) for f in fractions}


def summarise(scores: TokenScores) -> Divergence:
    """The numbers of a run.

    Raises:
        ValueError: there are no scored tokens.
    """
    n = len(scores)
    if n == 0:
        raise ValueError("no token was scored")
    (ln_ppl, ln_err), (ln_base, base_err) = mean_and_error(scores.nll), mean_and_error(scores.nll_base)
    shared = covariance(scores.nll, scores.nll_base)
    kld_mean, kld_err = mean_and_error(scores.kld)
    dp_mean, dp_err = mean_and_error(scores.dp)
    square, square_err = mean_and_error(scores.dp.astype(np.float64) ** 2)
    rms = math.sqrt(square)
    same = float(np.count_nonzero(scores.same_top)) / n
    klds, dps = np.sort(scores.kld.astype(np.float32)), np.sort(scores.dp)
    return Divergence(
        n_tokens=n,
        ppl=math.exp(ln_ppl),
        ppl_err=math.exp(ln_ppl) * ln_err,
        ppl_base=math.exp(ln_base),
        ppl_base_err=math.exp(ln_base) * base_err,
        ln_ratio=ln_ppl - ln_base,
        ln_ratio_err=math.sqrt(max(ln_err**2 + base_err**2 - 2 * shared, 0.0)),
        correlation=shared / (ln_err * base_err) if ln_err and base_err else 0.0,
        kld_mean=kld_mean,
        kld_err=kld_err,
        kld_se=block_error(scores.kld, scores.chunk),
        kld_max=float(klds[-1]),
        kld_min=float(klds[0]),
        dp_mean=dp_mean,
        dp_err=dp_err,
        dp_rms=rms,
        dp_rms_err=0.5 / rms * square_err if rms else 0.0,
        dp_max=float(dps[-1]),
        dp_min=float(dps[0]),
        same_top=same,
        same_top_err=math.sqrt(same * (1 - same) / (n - 1)) if n > 1 else 0.0,
        kld_percentiles=_percentiles(klds, KLD_PERCENTILES),
        dp_percentiles=_percentiles(dps, DP_PERCENTILES),
    )
