"""What a `Llama` is made of: construction, facts, and its end."""

from __future__ import annotations

import logging
import os
import random
import secrets
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import OptionError, UnsupportedError
from ..model import Model
from . import tokens
from .arguments import sort_arguments
from .constants import DEFAULT_SEED
from .formats import STOPS, template_of
from .offered import ATTRIBUTES, HUB
from .state import BaseLlamaCache, common_start

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from ..context import Context
    from ..kv import KVReport


class LlamaBase:
    """A model with one context, and what is known about them."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        progress: Callable[[float], bool | None] | None = None,
        **keywords: Any,
    ) -> None:
        sorted_ = sort_arguments(keywords)
        options = self.options = sorted_.options
        if options.chat_format is not None and options.chat_template is not None:
            raise OptionError("chat_format and chat_template are two answers to one question", hint="give one of them")
        self.chat_template = options.chat_template or template_of(options.chat_format)
        self.chat_stops = STOPS.get(options.chat_format or "", ())
        self._keywords = keywords
        self.model_path = os.fspath(model_path)
        self.verbose = options.verbose
        if options.verbose:
            _log_to_stderr()
        self.model = Model.open(model_path, progress=progress, **sorted_.model)
        try:
            self._ctx_or_none = None if self.model.options.vocab_only else self.model.context(**sorted_.context)
        except BaseException:
            self.model.close()
            raise
        self.metadata = dict(self.model.metadata)
        self.last_n_tokens_size = options.last_n_tokens_size
        self.n_batch = options.n_batch
        self.spm_infill = options.spm_infill
        self.cache: BaseLlamaCache | None = None
        self.set_seed(options.seed)
        self.steps = tokens.Steps(self)

    def set_seed(self, seed: int | None) -> None:
        """Seed of completions that give none: each draws its own from it. -1 or None: a random one."""
        drawn = seed in (None, -1, DEFAULT_SEED)
        self._random = random.Random(secrets.randbits(64) if drawn else seed)

    def draw_seed(self, seed: int | None) -> int:
        """The seed of a completion that asks for `seed`."""
        return self._random.randrange(DEFAULT_SEED) if seed is None or seed in (-1, DEFAULT_SEED) else seed

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def ctx(self) -> Context:
        """The context. Raises UnsupportedError with `vocab_only`."""
        if self._ctx_or_none is None:
            raise tokens.vocabulary_only("a context")
        return self._ctx_or_none

    @property
    def kv(self) -> KVReport:
        """KV cache types asked for and in effect, with bytes."""
        return self.ctx.kv

    @property
    def chat_format(self) -> str:
        """Name of the chat format in use."""
        return self.options.chat_format or "chat_template.default"

    def n_ctx(self) -> int:
        """Tokens the context holds, as the library made it."""
        return self.ctx.n_ctx

    def n_embd(self) -> int:
        """Values of an embedding."""
        return self.model.facts.n_embd

    def n_vocab(self) -> int:
        """Size of the vocabulary."""
        return self.model.facts.n_vocab

    def token_eos(self) -> int:
        """The token that ends a text, -1 if there is none."""
        return tokens.token_or_minus_one(self.model.tokenizer.facts.eos)

    def token_bos(self) -> int:
        """The token that begins a text, -1 if there is none."""
        return tokens.token_or_minus_one(self.model.tokenizer.facts.bos)

    def token_nl(self) -> int:
        """The newline token, -1 if there is none."""
        return tokens.token_or_minus_one(self.model.tokenizer.facts.nl)

    def pooling_type(self) -> int:
        """llama.cpp's integer for how token embeddings become one."""
        return self.ctx.facts.pooling_type

    @staticmethod
    def logits_to_logprobs(logits: Any, axis: int = -1) -> NDArray[np.float32]:
        """Log probabilities of logits."""
        import numpy as np

        rows = np.asarray(logits, dtype=np.float32)
        shifted = rows - rows.max(axis=axis, keepdims=True)
        logprobs: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return logprobs

    longest_token_prefix = staticmethod(common_start)

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **_: Any) -> NoReturn:
        """Not offered: raises UnsupportedError, which says how to get the file."""
        raise UnsupportedError(f"from_pretrained is not offered: {HUB[0]}", asked=repo_id, hint=HUB[1])

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: UTF-8 bytes, or str.
            add_bos: add the tokens that the model expects around a text.
            special: read texts such as "<|im_end|>" as the tokens they name.
        """
        return tokens.tokenize(self.model.tokenizer, text, add_bos, special)

    def detokenize(
        self, tokens_: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of tokens, which need not be whole characters."""
        return tokens.detokenize(self.model.tokenizer, tokens_, prev_tokens, special)

    @property
    def n_tokens(self) -> int:
        """Tokens in the context."""
        return self.ctx.seqs.next_position()

    @property
    def eval_tokens(self) -> deque[int]:
        """Tokens in the context."""
        return deque(self.ctx.seqs.tokens() or (), maxlen=self.n_ctx())

    # -- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the model and its context. Later use raises ClosedError."""
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"model_path": self.model_path, **self._keywords}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    if not TYPE_CHECKING:  # a type checker is to report names that do not exist

        def __getattr__(self, name: str) -> NoReturn:
            if name in ATTRIBUTES:
                raise UnsupportedError(f"Llama.{name} is not offered: {ATTRIBUTES[name]}", asked=name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Llama {self.model!r}>"


def _log_to_stderr() -> None:
    logger = logging.getLogger("pyllama_turbo")
    if not any(isinstance(handler, logging.StreamHandler) for handler in logger.handlers):
        logger.addHandler(logging.StreamHandler(sys.stderr))
    logger.setLevel(logging.INFO)
