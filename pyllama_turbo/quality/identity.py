"""Greedy identity: do two settings choose the same tokens, and if not, how close was the call?

A setting that must not change results (CUDA graphs, fused operations, another build) gives the same greedy tokens. One
that may (a KV type) diverges somewhere; the gap between the two best logits there says whether it was a coin toss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["PROMPTS", "Comparison", "Difference", "GreedyRun", "compare_runs", "greedy"]

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "A short list of things to pack for a week in the mountains:\n1.",
    "The three laws of motion say that",
    '{"name": "Ada Lovelace", "born": ',
    "Once upon a time, at the edge of a quiet village,",
    "SELECT customer_id, COUNT(*) FROM orders",
    "To bake bread you need flour, water, salt and",
)


@dataclass(frozen=True)
class GreedyRun:
    """Greedy continuation of one prompt: the tokens, and for each the distance in logits to the runner-up."""

    prompt: str
    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """Where two runs part.

    Attributes:
        prompt: index of the prompt.
        position: generated tokens before it.
        token_a, token_b: the two choices.
        gap_a, gap_b: how far, in logits, each run's choice was ahead of its own runner-up.
    """

    prompt: int
    position: int
    token_a: int
    token_b: int
    gap_a: float
    gap_b: float


@dataclass(frozen=True)
class Comparison:
    """Outcome over all prompts."""

    n_prompts: int
    n_tokens: int
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        """Whether every token was the same."""
        return not self.differences


def greedy(
    context: Context, prompts: Sequence[str], n_tokens: int, progress: Callable[[int], None] = lambda _: None
) -> list[GreedyRun]:
    """Continue each prompt by its likeliest token `n_tokens` times, end-of-text tokens included.

    Ties go to the smaller token id, so a run is a function of the logits alone.
    """
    runs = []
    for number, prompt in enumerate(prompts):
        context.seqs.clear()
        position = context.decode(context.model.tokenizer.encode(prompt))
        tokens, gaps = [], []
        for _ in range(n_tokens):
            logits = context.logits[-1]
            token = int(logits.argmax())
            second = np.partition(logits, -2)[-2]
            tokens.append(token)
            gaps.append(float(logits[token] - second))
            context.decode_one(token, position)
            position += 1
        runs.append(GreedyRun(prompt, tuple(tokens), tuple(gaps)))
        progress(number + 1)
    return runs


def compare_runs(a: Sequence[GreedyRun], b: Sequence[GreedyRun]) -> Comparison:
    """Compare two runs over the same prompts, prompt by prompt, up to the shorter of the two continuations.

    Raises:
        ValueError: the prompts differ.
    """
    if [run.prompt for run in a] != [run.prompt for run in b]:
        raise ValueError("the two runs have different prompts")
    differences = []
    n_tokens = 0
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        length = min(len(x.tokens), len(y.tokens))
        place = next((i for i in range(length) if x.tokens[i] != y.tokens[i]), None)
        n_tokens += length if place is None else place
        if place is not None:
            differences.append(Difference(index, place, x.tokens[place], y.tokens[place], x.gaps[place], y.gaps[place]))
    return Comparison(len(a), n_tokens, tuple(differences))
