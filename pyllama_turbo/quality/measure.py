"""The three runs: write a base, score against it, perplexity alone. Each streams and says how far it is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError
from .basefile import BaseFile
from .divergence import TokenScores
from .passes import LogitSource, run
from .plan import ScorePlan
from .softmax import compare, encode_rows, row_words
from .stats import block_error, mean_and_error

__all__ = ["Perplexity", "Progress", "perplexity", "score", "write_base"]

Progress = Callable[[int], None]  # takes scored tokens so far


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a run; `ppl_err` is llama.cpp's error (independent tokens), `ppl_se` that of 16-token blocks."""

    n_tokens: int
    ppl: float
    ppl_err: float
    ppl_se: float


def _quiet(_: int) -> None:
    pass


def write_base(source: LogitSource, plan: ScorePlan, base: BaseFile, progress: Progress = _quiet) -> None:
    """Fill a base file from where it ends. Interrupting keeps what is complete.

    Raises:
        StateError: the vocabulary is not the file's.
    """
    _check_vocab(source, base)
    progress(base.done * plan.per_chunk)
    for piece in run(source, plan, base.done):
        n = len(piece.logits)
        targets = plan.targets(piece.chunk)[piece.offset : piece.offset + n]
        encode_rows(piece.logits, targets, base.rows[piece.chunk, piece.offset : piece.offset + n])
        if piece.done > base.done:
            base.advance(piece.done)
        progress(piece.done * plan.per_chunk)


def score(
    source: LogitSource, plan: ScorePlan, base: BaseFile, progress: Progress = _quiet, keep: Path | None = None
) -> TokenScores:
    """Score a run against a complete base.

    Args:
        source: the context under test.
        plan: what to score; the same tokens as the base.
        base: the reference.
        progress: called with the scored tokens so far.
        keep: file the scores are kept in after each chunk; a run that finds it goes on from there. It must name one
            setting only: what is in it is not checked against the source.

    Raises:
        StateError: the base is incomplete or of other tokens or another vocabulary.
    """
    _check_vocab(source, base)
    if not base.complete:
        raise StateError(f"{base.path} has {base.done} of {plan.n_chunk} chunks", hint="finish the base run first")
    if not np.array_equal(base.tokens[:, 1:], plan.tokens[:, 1:]):
        raise StateError(f"{base.path} was made from other tokens", hint="use the text and sizes of the base")
    scores = TokenScores.empty(plan.n_chunk, plan.per_chunk)
    done = _load(keep, scores)
    progress(done * plan.per_chunk)
    for piece in run(source, plan, done):
        n = len(piece.logits)
        targets = plan.targets(piece.chunk)[piece.offset : piece.offset + n]
        rows = base.rows[piece.chunk, piece.offset : piece.offset + n]
        first = piece.chunk * plan.per_chunk + piece.offset
        scores.put(np.arange(first, first + n), compare(piece.logits, rows, targets))
        if piece.done > done:
            done = piece.done
            _save(keep, scores, done)
        progress(max(done * plan.per_chunk, first + n if plan.parallel == 1 else 0))
    return scores


def perplexity(source: LogitSource, plan: ScorePlan, progress: Progress = _quiet) -> Perplexity:
    """Perplexity over the scored tokens of a plan."""
    nll = np.zeros((plan.n_chunk, plan.per_chunk), np.float32)
    scratch: NDArray[np.uint16] = np.empty((0, row_words(source.n_vocab)), np.uint16)
    for piece in run(source, plan):
        n = len(piece.logits)
        if len(scratch) < n:
            scratch = np.empty((n, row_words(source.n_vocab)), np.uint16)
        targets = plan.targets(piece.chunk)[piece.offset : piece.offset + n]
        nll[piece.chunk, piece.offset : piece.offset + n] = encode_rows(piece.logits, targets, scratch[:n])
        progress(piece.done * plan.per_chunk)
    mean, error = mean_and_error(nll.ravel())
    ppl = math.exp(mean)
    chunks = np.repeat(np.arange(plan.n_chunk), plan.per_chunk)
    return Perplexity(nll.size, ppl, ppl * error, ppl * block_error(nll.ravel(), chunks))


def _check_vocab(source: LogitSource, base: BaseFile) -> None:
    if source.n_vocab != base.n_vocab:
        raise StateError(
            f"{base.path} is over {base.n_vocab:,} tokens, the model has {source.n_vocab:,}",
            asked=source.n_vocab,
            limit=base.n_vocab,
        )


def _load(keep: Path | None, scores: TokenScores) -> int:
    """Fill in what an interrupted run left; returns its complete chunks."""
    if keep is None or not keep.is_file():
        return 0
    with np.load(keep) as found:
        if len(found["nll"]) != len(scores):
            raise StateError(f"{keep} belongs to a run of another size", hint="delete it")
        for name in TokenScores.NAMES:
            getattr(scores, name)[:] = found[name]
        return int(found["done"])


def _save(keep: Path | None, scores: TokenScores, done: int) -> None:
    if keep is None:
        return
    fresh = keep.with_name(keep.name + ".new")
    with fresh.open("wb") as file:
        np.savez(file, done=done, **{name: getattr(scores, name) for name in TokenScores.NAMES})
    os.replace(fresh, keep)
