"""What is scored: tokens in chunks, a range of positions in each, and the path that computes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

__all__ = ["PATHS", "ScorePlan", "chunk_plan", "range_plan"]

PATHS = ("prefill", "decode")


@dataclass(frozen=True)
class ScorePlan:
    """Tokens to score.

    The logits at position i predict token i + 1, so positions `first` to `last - 1` are scored and `last` is at most
    n_ctx - 1.

    Attributes:
        tokens: int32 [n_chunk, n_ctx]. Each chunk is a text of its own, beginning with an empty cache.
        first, last: range of positions scored in each chunk, half open.
        path: "prefill" (batches) or "decode" (the scored positions one token at a time).
        n_batch: tokens of one batch where batches are used.
        parallel: chunks computed side by side on the decode path, one token of each per step.
    """

    tokens: NDArray[np.int32]
    first: int
    last: int
    path: str = "prefill"
    n_batch: int = 512
    parallel: int = 1

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise OptionError(f"path is {self.path!r}", asked=self.path, limit=PATHS, hint="one of prefill, decode")
        if self.tokens.ndim != 2 or not 0 <= self.first < self.last <= self.n_ctx - 1:
            raise OptionError(
                f"positions {self.first} to {self.last} of chunks of {self.tokens.shape[-1]} tokens cannot be scored",
                asked=(self.first, self.last),
                limit=self.tokens.shape[-1] - 1,
            )
        if self.parallel != 1 and self.path != "decode":
            raise OptionError("parallel is for the decode path", asked=self.parallel)

    @property
    def n_chunk(self) -> int:
        """Number of chunks."""
        return int(self.tokens.shape[0])

    @property
    def n_ctx(self) -> int:
        """Tokens of one chunk."""
        return int(self.tokens.shape[1])

    @property
    def per_chunk(self) -> int:
        """Scored tokens of one chunk."""
        return self.last - self.first

    @property
    def n_scored(self) -> int:
        """Scored tokens."""
        return self.n_chunk * self.per_chunk

    @property
    def n_fed(self) -> int:
        """Tokens of a chunk that are computed: those with a scored position and all before. Where the second half is
        scored it is the whole chunk, so that batches are those of llama.cpp's tool."""
        return self.n_ctx if self.half else self.last

    @property
    def half(self) -> bool:
        """Whether the second half of each chunk is scored, as llama.cpp's perplexity tool does."""
        return self.first == self.n_ctx // 2 and self.last == self.n_ctx - 1

    @property
    def text_hash(self) -> str:
        """SHA-256 of tokens and range: two runs with the same value scored the same tokens."""
        head = f"{self.n_ctx} {self.first} {self.last} ".encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.tokens, "<i4").tobytes()).hexdigest()

    def targets(self, chunk: int) -> NDArray[np.int32]:
        """The tokens that came next, [per_chunk]."""
        return self.tokens[chunk, self.first + 1 : self.last + 1]


def _table(rows: Sequence[Sequence[int]], bos: int | None) -> NDArray[np.int32]:
    table = np.array(rows, dtype=np.int32)
    if bos is not None:
        table[:, 0] = bos
    return table


def chunk_plan(
    tokens: Sequence[int],
    n_ctx: int = 512,
    n_chunk: int | None = None,
    *,
    bos: int | None = None,
    path: str = "prefill",
    n_batch: int = 512,
    parallel: int = 1,
) -> ScorePlan:
    """Consecutive chunks of `n_ctx` tokens, the second half of each scored.

    Args:
        tokens: the text.
        n_ctx: tokens of one chunk.
        n_chunk: chunks at most; None takes all that are full.
        bos: token put in place of the first of each chunk, where the model expects one.
        path, n_batch, parallel: see `ScorePlan`.

    Raises:
        OptionError: the text is shorter than one chunk.
    """
    found = len(tokens) // n_ctx
    if found < 1:
        raise OptionError(f"the text has {len(tokens)} tokens, one chunk needs {n_ctx}", asked=n_ctx, limit=len(tokens))
    n = min(found, n_chunk or found)
    rows = [tokens[i * n_ctx : (i + 1) * n_ctx] for i in range(n)]
    return ScorePlan(_table(rows, bos), n_ctx // 2, n_ctx - 1, path, n_batch, min(parallel, n))


def range_plan(
    tokens: Sequence[int], first: int, last: int, *, bos: int | None = None, path: str = "prefill", n_batch: int = 512
) -> ScorePlan:
    """One long text, of which positions `first` to `last - 1` are scored.

    Raises:
        OptionError: the text is shorter than last + 1 tokens.
    """
    if len(tokens) < last + 1:
        raise OptionError(
            f"the text has {len(tokens)} tokens, {last + 1} are needed", asked=last + 1, limit=len(tokens)
        )
    return ScorePlan(_table([tokens[: last + 1]], bos), first, last, path, n_batch)
