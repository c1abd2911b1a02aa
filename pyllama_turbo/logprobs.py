"""Log probabilities: what the model itself gave a token, before any sampler or logits processor.

They are the natural logarithm of the softmax over one row of logits, as llama.cpp's server and llama-cpp-python report
them. One row is looked at at a time, so memory does not grow with the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .tokenizer import Tokenizer

__all__ = ["Candidate", "Distribution", "TokenLogprobs"]


@dataclass(frozen=True)
class Candidate:
    """A token that could have come, with its natural log probability. `piece` need not be a whole character."""

    token: int
    piece: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The piece as text; bytes that are no whole character become U+FFFD."""
        return self.piece.decode("utf-8", "replace")


@dataclass(frozen=True)
class TokenLogprobs(Candidate):
    """A token of the text, and the likeliest ones at its place, the likeliest first."""

    top: tuple[Candidate, ...]


class Distribution:
    """The distribution that one row of logits stands for.

    Args:
        logits: float32 [n_vocab]; copied, because samplers and the next decode change them.
        n_top: likeliest tokens to report; n_vocab at most.
    """

    def __init__(self, logits: NDArray[np.float32], n_top: int) -> None:
        import numpy as np

        self._logits = logits.copy()
        highest = float(self._logits.max())
        total = np.exp(self._logits - np.float32(highest), dtype=np.float32).sum(dtype=np.float64)
        self._log_total = highest + float(np.log(total))
        self._top: list[int] = []
        if n_top:
            found = np.argpartition(self._logits, -n_top)[-n_top:]
            self._top = [int(i) for i in found[np.argsort(-self._logits[found], kind="stable")]]

    def logprob(self, token: int) -> float:
        """Natural log probability of a token."""
        return float(self._logits[token]) - self._log_total

    def of(self, token: int, tokenizer: Tokenizer) -> TokenLogprobs:
        """The report for the token that came."""

        def fields(t: int) -> tuple[int, bytes, float]:
            return t, tokenizer.piece(t, special=True), self.logprob(t)

        return TokenLogprobs(*fields(token), top=tuple(Candidate(*fields(t)) for t in self._top))
