"""Bringing a cache to a depth before a measurement: by running tokens, or with synthetic contents."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import _native
from ..errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["MODES", "fill", "random_tokens"]

MODES = ("prefill", "synthetic", "auto")
AUTO_SYNTHETIC_TOKENS = 16384  # from this depth on "auto" does not compute what only has to be read


def random_tokens(n_vocab: int, n: int, seed: int) -> list[int]:
    """`n` token ids from the whole vocabulary."""
    draw = random.Random(seed)
    return [draw.randrange(n_vocab) for _ in range(n)]


def _fill_synthetic(context: Context, depth: int) -> None:
    b = context._binding
    native = getattr(b.lib, "turbo_kv_fill", None)
    if native is None:
        raise UnsupportedError("this library cannot fill a cache synthetically", hint="use the fill mode prefill")
    with context.lock:
        _native.check(b, native(context.pointer(), 0, depth, depth), asked=depth)
        context.seqs.forget(0)


def fill(context: Context, depth: int, mode: str = "auto", cancel: Callable[[], None] = lambda: None) -> str:
    """Fill sequence 0 from position 0 to `depth`.

    Synthetic contents are random blocks of the cache's types at the right positions: reading them takes the time of
    real ones, and no prompt has to be computed. What a model says after them is noise.

    Args:
        context: its cache is empty.
        depth: tokens.
        mode: "prefill", "synthetic", or "auto": synthetic from 16,384 tokens on where the library can.
        cancel: called between batches; raises to stop.

    Returns:
        What was done: "prefill", "synthetic", or "" for depth 0.

    Raises:
        OptionError: an unknown mode.
        UnsupportedError: synthetic contents were asked for and this library or cache has none.
    """
    if mode not in MODES:
        raise OptionError(f"the fill mode is {mode!r}", asked=mode, limit=MODES, hint=f"one of {', '.join(MODES)}")
    if depth == 0:
        return ""
    if mode == "synthetic" or (mode == "auto" and depth >= AUTO_SYNTHETIC_TOKENS):
        try:
            _fill_synthetic(context, depth)
            return "synthetic"
        except UnsupportedError:
            if mode == "synthetic":
                raise
    tokens = random_tokens(context.model.facts.n_vocab, depth, seed=depth)
    step = context.facts.n_batch
    for first in range(0, depth, step):
        cancel()
        context.decode(tokens[first : first + step], pos=first, outputs="none")
    return "prefill"
