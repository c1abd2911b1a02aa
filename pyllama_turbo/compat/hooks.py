"""Functions of the caller's that see or change every choice: logits processors and stopping criteria.

llama-cpp-python calls them with arrays and takes an array back; `Sampler` wants the logits changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..sampling import LogitsProcessor as InPlace

LogitsProcessor: TypeAlias = "Callable[[NDArray[np.intc], NDArray[np.single]], NDArray[np.single]]"
StoppingCriterion: TypeAlias = "Callable[[NDArray[np.intc], NDArray[np.single]], bool]"

__all__ = ["LogitsProcessorList", "MinTokensLogitsProcessor", "StoppingCriteriaList", "Stopped", "in_place"]


class LogitsProcessorList(list[Any]):
    """Logits processors called one after the other: each gets what the one before it returned."""

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        """The scores after all of them, [n_vocab]; `input_ids` are the tokens so far, prompt included."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[Any]):
    """Stopping criteria of which one is enough."""

    def __call__(self, input_ids: NDArray[np.intc], logits: NDArray[np.single]) -> bool:
        """Whether one of them is met; those after it are not asked."""
        return any(bool(criterion(input_ids, logits)) for criterion in self)


class MinTokensLogitsProcessor:
    """Forbids a token, the end of text usually, in the first `min_tokens` tokens of an answer."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        """The scores, changed in place; the prompt is what the first call has for `input_ids`."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


class Stopped(Exception):
    """A stopping criterion was met: no further token is chosen."""


def _changes(processor: LogitsProcessor) -> InPlace:
    def change(history: Sequence[int], logits: NDArray[np.float32]) -> None:
        result = processor(np.asarray(history, dtype=np.intc), logits)
        if result is None or result is logits:
            return
        row = np.asarray(result, dtype=np.float32)
        if row.shape != logits.shape:
            raise OptionError(
                f"a logits processor gave {row.shape}, logits have {logits.shape}", asked=row.shape, limit=logits.shape
            )
        logits[:] = row

    return change


def _stops(criterion: StoppingCriterion) -> InPlace:
    def look(history: Sequence[int], logits: NDArray[np.float32]) -> None:
        if criterion(np.asarray(history, dtype=np.intc), logits.copy()):
            raise Stopped

    return look


def in_place(processors: Sequence[LogitsProcessor], criteria: Sequence[StoppingCriterion] = ()) -> list[InPlace]:
    """Functions for `Sampler`: criteria look at the logits as the model gave them, then the processors change them."""
    return [*map(_stops, criteria), *map(_changes, processors)]
