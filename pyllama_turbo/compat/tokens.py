"""Tokens one at a time: the tokenizer's older surface, `eval`, `sample` and `generate`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import OptionError, UnsupportedError
from ..sampling import Sampler
from .hooks import Stopped, in_place
from .requests import TokenRequest, sampling_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..tokenizer import Tokenizer
    from .base import LlamaBase


class LlamaTokenizer:
    """The tokenizer of a `Llama`; `encode` and `decode` work on text, `tokenize` and `detokenize` on bytes."""

    def __init__(self, llama: LlamaBase) -> None:
        self._tokenizer = llama.model.tokenizer

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text."""
        return tokenize(self._tokenizer, text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of tokens."""
        return detokenize(self._tokenizer, tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.tokenize(text, add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no valid UTF-8 are left out."""
        return self.detokenize(tokens).decode("utf-8", "ignore")


def tokenize(tokenizer: Tokenizer, text: str | bytes, add_bos: bool, special: bool) -> list[int]:
    """Token ids of a text."""
    if not isinstance(text, (str, bytes, bytearray)):
        raise OptionError(f"a text is str or bytes, not {type(text).__name__}", asked=text)
    raw = text if isinstance(text, str) else bytes(text)
    return tokenizer.encode(raw, add_special=add_bos, parse_special=special)


def detokenize(tokenizer: Tokenizer, tokens: Sequence[int], prev_tokens: Sequence[int] | None, special: bool) -> bytes:
    """Bytes of tokens. The space that begins a text behind a BOS is left out, as llama-cpp-python does."""
    pieces = b"".join(tokenizer.piece(int(token), special=special) for token in tokens)
    first = [*(prev_tokens or ()), *tokens][:1]
    begins = len(tokens) > 0 and not prev_tokens and first[0] == tokenizer.facts.bos
    return pieces[1:] if begins and pieces[:1] == b" " else pieces


class Steps:
    """State of `eval` and `sample`: logits of what was evaluated, and the sampler of the last settings."""

    def __init__(self, llama: LlamaBase) -> None:
        self._llama = llama
        self._rows: list[NDArray[np.float32]] = []
        self._sampler: tuple[TokenRequest, Sampler] | None = None

    def reset(self) -> None:
        """Forget logits and sampler."""
        self._rows.clear()
        self._sampler = None

    def evaluate(self, tokens: Sequence[int]) -> None:
        """Run tokens behind what the cache holds, and keep their logits if the object was made with `logits_all`."""
        llama = self._llama
        del self._rows[llama.n_tokens :]
        if llama.ctx.options.logits_all:
            self._rows += [row.copy() for part in llama.ctx.iter_logits(list(tokens)) for row in part]
        else:
            llama.ctx.decode(list(tokens))

    @property
    def scores(self) -> NDArray[np.float32]:
        """Logits of the evaluated tokens, float32 [tokens, n_vocab]."""
        if not self._llama.ctx.options.logits_all:
            raise UnsupportedError(
                "logits of every token are not kept", hint="make the object with logits_all=True, or use ctx.logits"
            )
        if not self._rows:
            return np.empty((0, self._llama.n_vocab()), dtype=np.float32)
        return np.stack(self._rows)

    def sample(self, request: TokenRequest, row: int = -1) -> int:
        """Choose a token from logits of the last call; a sampler with the same settings goes on where it was."""
        llama = self._llama
        if self._sampler is None or self._sampler[0] != request:
            self._sampler = (request, self.sampler(request, llama.eval_tokens))
        return self._sampler[1].next(llama.ctx, row, history=llama.eval_tokens)

    def sampler(self, request: TokenRequest, history: Sequence[int]) -> Sampler:
        """A sampler for a request that has seen `history`."""
        llama = self._llama
        options = sampling_options(request, llama.last_n_tokens_size, llama.draw_seed(request.seed))
        hooks = in_place(request.logits_processor, request.stopping_criteria)
        sampler = Sampler(llama.model, processors=hooks, **options)
        sampler.start(list(history))
        return sampler


def generate(
    llama: LlamaBase, tokens: Sequence[int], request: TokenRequest
) -> Generator[int, Sequence[int] | None, None]:
    """Token ids one after the other, those that end a text included, until the caller stops or the context is full.

    Tokens sent into the generator are put behind the one just given.
    """
    claim = object()
    llama.ctx.claim(claim)
    try:
        ids = list(tokens)
        if request.reset:
            llama.ctx.prefill(ids)
        else:
            llama.ctx.decode(ids)
        with llama.steps.sampler(request, llama.eval_tokens) as sampler:
            while True:
                token = sampler.next(llama.ctx, history=llama.eval_tokens)
                more = yield token
                llama.ctx.decode([token, *(more or ())])
                for extra in more or ():
                    sampler.accept(extra)
    except Stopped:
        return
    finally:
        llama.ctx.release(claim)


def vocabulary_only(what: str) -> UnsupportedError:
    """The error for everything that needs weights, on an object made with `vocab_only`."""
    return UnsupportedError(f"{what} needs the model's weights", hint="make the object without vocab_only=True")


def token_or_minus_one(token: Any) -> int:
    """A special token as llama.cpp gives it: -1 where there is none."""
    return -1 if token is None else int(token)
