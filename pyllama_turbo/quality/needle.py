"""Recall of a fact from a long text, cold and from a cached prefix, at several depths.

Two measures: whether the greedy answer holds the fact, and the mean log-probability of the fact's tokens, which still
tells settings apart when all of them answer rightly (or a small model never does).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .texts import prose

if TYPE_CHECKING:
    from ..context import Context

Encode = Callable[[str], list[int]]

__all__ = ["Needle", "Recall", "make_needle", "measure_recall", "recall"]

_PLACES = ("lighthouse", "old mill", "north gate", "observatory", "harbour office", "clock tower", "botanical garden")


@dataclass(frozen=True)
class Needle:
    """A fact and how it is asked for; `answer` is what has to come."""

    fact: str
    question: str
    answer: str


@dataclass(frozen=True)
class Recall:
    """One trial.

    Attributes:
        n_tokens: length of the prompt.
        depth: where the fact stood, 0 (begin) to 1 (end).
        reused: tokens taken from the cache instead of computed.
        found: whether the greedy answer begins with the fact.
        logprob: mean log-probability of the answer's tokens, in nats.
        text: the greedy answer.
    """

    n_tokens: int
    depth: float
    reused: int
    found: bool
    logprob: float
    text: str


def make_needle(seed: int) -> Needle:
    """A fact that no text holds: a place and a number of five digits, both from the seed."""
    draw = random.Random(seed)
    place, number = draw.choice(_PLACES), str(draw.randrange(10_000, 100_000))
    return Needle(
        fact=f"\n\nThe secret number of the {place} is {number}.\n\n",
        question=f"\n\nQuestion: What is the secret number of the {place}?\n"
        f"Answer: The secret number of the {place} is",
        answer=f" {number}",
    )


def _prompt(encode: Encode, needle: Needle, n_tokens: int, depth: float) -> tuple[list[int], list[int]]:
    """Filler with the fact inside, and the question; together `n_tokens` long."""
    fact, question = encode(needle.fact), encode(needle.question)
    room = max(n_tokens - len(fact) - len(question), 0)
    filler = encode(prose()[: 8 * room + 1024])[:room]
    place = int(len(filler) * depth)
    return filler[:place] + fact + filler[place:], question


def measure_recall(context: Context, needle: Needle, prompt: Sequence[int], depth: float, *, reuse: bool) -> Recall:
    """Run one prompt and read the answer."""
    tokenizer = context.model.tokenizer
    answer = tokenizer.encode(needle.answer, add_special=False)
    done = context.prefill(prompt, reuse=reuse)
    position, said, logprobs = len(prompt), [], []
    for step in range(max(len(answer), 8)):
        logits = context.logits[-1].astype(np.float64)
        choice = int(logits.argmax())
        said.append(choice)
        if step < len(answer):
            # The answer is followed, not the choice: later tokens are then judged on the right digits before them.
            logprobs.append(float(logits[answer[step]] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
            choice = answer[step]
        elif tokenizer.is_eog(choice):
            break
        context.decode_one(choice, position)
        position += 1
    text = tokenizer.decode(said)
    found = text.strip().startswith(needle.answer.strip())
    return Recall(len(prompt), depth, done.n_reused, found, float(np.mean(logprobs)), text)


def recall(
    context: Context,
    n_tokens: int,
    depths: Sequence[float],
    *,
    seed: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> list[tuple[Recall, Recall]]:
    """For each depth one cold trial, and one that finds the text in the cache and only computes the question anew."""
    tokenizer = context.model.tokenizer
    bos = tokenizer.encode("")
    results = []
    for number, depth in enumerate(depths):
        needle = make_needle(seed + number)
        text, question = _prompt(lambda t: tokenizer.encode(t, add_special=False), needle, n_tokens - len(bos), depth)
        prompt = bos + text + question
        cold = measure_recall(context, needle, prompt, depth, reuse=False)
        context.prefill(bos + text)  # cuts the question off again, so that the next run finds the text and no more
        warm = measure_recall(context, needle, prompt, depth, reuse=True)
        results.append((cold, warm))
        progress(number + 1)
    return results
