"""Running a plan through a context: logits of the scored positions, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .plan import ScorePlan

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model

__all__ = ["ContextSource", "LogitSource", "Piece", "open_source", "run"]


class LogitSource(Protocol):
    """Something that computes logits: a context, or a stand-in for tests."""

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary."""

    def clear(self) -> None:
        """Forget all sequences."""

    def feed(
        self, tokens: Sequence[int], positions: Sequence[int], seqs: Sequence[int], outputs: Sequence[bool]
    ) -> NDArray[np.float32] | None:
        """Run one batch; logits of the tokens with output, [rows, n_vocab], valid until the next call."""


@dataclass(frozen=True)
class Piece:
    """Logits of some scored positions of one chunk.

    Attributes:
        chunk: index of the chunk.
        offset: scored position the first row belongs to; 0 is `plan.first`.
        logits: [rows, n_vocab], valid until the next piece is taken.
        done: chunks that are complete once this piece was used.
    """

    chunk: int
    offset: int
    logits: NDArray[np.float32]
    done: int


class ContextSource:
    """A context as a source of logits."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary."""
        return self.context.model.facts.n_vocab

    def clear(self) -> None:
        """Empty the cache."""
        self.context.seqs.clear()

    def feed(
        self, tokens: Sequence[int], positions: Sequence[int], seqs: Sequence[int], outputs: Sequence[bool]
    ) -> NDArray[np.float32] | None:
        """See `LogitSource`."""
        self.context.decode_batch(tokens, positions, seqs, outputs)
        return self.context.logits if any(outputs) else None


def context_keywords(plan: ScorePlan) -> dict[str, Any]:
    """Keywords of a context that can run a plan: room, batches, rows of logits."""
    room = -(-plan.n_fed // 256) * 256
    return {
        "n_ctx": room * plan.parallel,
        "n_seq_max": plan.parallel,
        "n_batch": max(plan.n_batch, plan.parallel),
        "n_ubatch": max(plan.n_batch, plan.parallel),
        "n_outputs_max": max(min(plan.n_batch, plan.n_fed), plan.parallel),
    }


def open_source(model: Model, plan: ScorePlan, **keywords: Any) -> ContextSource:
    """A context of the model with room for a plan; `keywords` such as `kv` go to it."""
    return ContextSource(model.context(**{**context_keywords(plan), **keywords}))


def run(source: LogitSource, plan: ScorePlan, start: int = 0) -> Iterator[Piece]:
    """Compute the scored positions of a plan, from chunk `start` on."""
    step = plan.parallel
    for chunk in range(start, plan.n_chunk, step):
        source.clear()
        if plan.path == "prefill":
            yield from _batches(source, plan, chunk)
        else:
            yield from _single_tokens(source, plan, list(range(chunk, min(chunk + step, plan.n_chunk))))


def _batches(source: LogitSource, plan: ScorePlan, chunk: int) -> Iterator[Piece]:
    tokens = plan.tokens[chunk].tolist()
    for begin in range(0, plan.n_fed, plan.n_batch):
        end = min(begin + plan.n_batch, plan.n_fed)
        wanted = [plan.first <= i < plan.last for i in range(begin, end)]
        logits = source.feed(tokens[begin:end], range(begin, end), [0] * (end - begin), wanted)
        if logits is not None:
            complete = chunk + (end >= plan.last)
            yield Piece(chunk, max(begin, plan.first) - plan.first, logits, complete)
        if end >= plan.last:
            return


def _single_tokens(source: LogitSource, plan: ScorePlan, chunks: list[int]) -> Iterator[Piece]:
    for seq, chunk in enumerate(chunks):
        tokens = plan.tokens[chunk].tolist()
        for begin in range(0, plan.first, plan.n_batch):
            end = min(begin + plan.n_batch, plan.first)
            source.feed(tokens[begin:end], range(begin, end), [seq] * (end - begin), [False] * (end - begin))
    n = len(chunks)
    for position in range(plan.first, plan.last):
        logits = source.feed(plan.tokens[chunks, position].tolist(), [position] * n, range(n), [True] * n)
        if logits is None:
            raise RuntimeError("a batch with outputs gave no logits")
        for seq, chunk in enumerate(chunks):
            complete = position == plan.last - 1 and seq == n - 1
            yield Piece(chunk, position - plan.first, logits[seq : seq + 1], chunks[-1] + 1 if complete else chunks[0])
