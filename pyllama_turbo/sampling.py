"""Choosing the next token: upstream's sampler chain, built from `SamplingOptions`, and logits processors in Python."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import _native, errors, logs
from ._lifetime import Handle
from .grammar import from_schema
from .options import SamplingOptions, build

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ._native import Binding
    from .context import Context
    from .model import Model

__all__ = ["LogitsProcessor", "Sampler", "draw_seed"]

LogitsProcessor = Callable[[Sequence[int], "NDArray[np.float32]"], None]

_NAMES = {"repeat_last_n": "penalty_last_n"}  # option -> native field, where they differ
_HISTORY = 64  # tokens upstream's sampler remembers in any case
_PLAIN = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "dynatemp_range", "dynatemp_exponent", "repeat_last_n", "repeat_penalty", "frequency_penalty", "presence_penalty",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau",
    "mirostat_eta", "adaptive_target", "adaptive_decay", "min_keep", "ignore_eos",
)  # fmt: skip


def draw_seed() -> int:
    """A random seed; never the value that means "draw one" to llama.cpp."""
    return secrets.randbelow(2**32 - 1)


class Sampler(Handle):
    """A sampler with its state (penalty history, grammar, random numbers). Serves one generation at a time.

    Args:
        model: the model whose tokens it chooses.
        options: the chain; keywords are fields of `SamplingOptions`.
        processors: called in order before each choice with the tokens so far and the writable logits [n_vocab] of this
            step; they change the logits in place.
        grammar_lazy, triggers: constrain only after a trigger, as `chat.render` asks for tools.
        grammar_prefix: tokens at the end of every prompt that the grammar describes too.

    Attributes:
        seed: the seed in use, drawn if none was given.
        constrained: whether a grammar shapes the text from its first token on.

    Raises:
        OptionError: a value out of range, an unknown sampler name, a grammar that does not parse.
    """

    _what = "sampler"

    def __init__(
        self,
        model: Model,
        options: SamplingOptions | None = None,
        *,
        processors: Sequence[LogitsProcessor] = (),
        grammar_lazy: bool = False,
        triggers: str | None = None,
        grammar_prefix: Sequence[int] = (),
        **keywords: Any,
    ) -> None:
        chosen = options if options is not None and not keywords else build(SamplingOptions, keywords)
        if chosen.json_schema is not None:
            chosen = _with_schema(chosen)
        b = model._binding
        self.options = chosen
        self.constrained = chosen.grammar is not None and not grammar_lazy
        self.seed = draw_seed() if chosen.seed is None or chosen.seed == -1 else chosen.seed
        self.processors = tuple(processors)
        self._grammar_prefix = tuple(grammar_prefix)
        params, keep = _native_params(b, chosen, self.seed)
        if triggers is not None:
            keep.append(b.ffi.new("char[]", triggers.encode()))
            params.grammar_lazy, params.triggers = grammar_lazy, keep[-1]
        out = b.ffi.new("turbo_sampler **")
        logs.forget()
        with model.lock:  # nothing may free the model meanwhile, nor before this sampler counts as its child
            status = b.lib.turbo_sampler_new(model.pointer(), params, out)
            del keep
            _native.check(b, status)
            super().__init__(b, out[0], b.lib.turbo_sampler_free, model)
        logs.drain(b.ffi, b.lib)
        self._token = b.ffi.new("int32_t *")

    def next(self, context: Context, row: int = -1, *, history: Sequence[int] = ()) -> int:
        """Choose a token from a row of the last decode's logits, and accept it.

        Args:
            context: where the logits are.
            row: which row; negative counts from the end.
            history: tokens so far, for the logits processors.

        Raises:
            OptionError: there is no such row.
            Whatever a logits processor raises.
        """
        b = self._binding
        with context.lock, self.lock:
            if self.processors:
                logits = context._logits(writable=True)[row]
                for processor in self.processors:
                    processor(history, logits)
            status = b.lib.turbo_sampler_next(self.pointer(), context.pointer(), row, self._token)
            if status != 0:
                _native.check(b, status, asked=row)
            token: int = self._token[0]
            return token

    def accept(self, token: int, *, generated: bool = False) -> None:
        """Tell the sampler of a token it did not choose: of the prompt, or (`generated`) of the answer."""
        with self.lock:
            _native.check(
                self._binding, self._binding.lib.turbo_sampler_accept(self.pointer(), token, generated), asked=token
            )

    def start(self, prompt: Sequence[int]) -> None:
        """Begin a generation: forget everything, then let the penalties see as much of the prompt as they look back."""
        window = max(_HISTORY, self.options.repeat_last_n, self.options.dry_penalty_last_n)
        prefix = self._grammar_prefix
        with self.lock:
            self.reset()
            for token in prompt[-window : len(prompt) - len(prefix)]:
                self.accept(token)
            for token in prefix:
                self.accept(token, generated=True)

    def reset(self) -> None:
        """Forget history and grammar state."""
        with self.lock:
            _native.check(self._binding, self._binding.lib.turbo_sampler_reset(self.pointer()))

    def grammar_complete(self) -> bool:
        """Whether the text satisfies the grammar and nothing could follow; False without a grammar."""
        with self.lock:
            return bool(self._binding.lib.turbo_sampler_complete(self.pointer()))

    def describe(self) -> str:
        """The chain as upstream prints it."""
        b = self._binding
        out = b.ffi.new("char **")
        with self.lock:
            _native.check(b, b.lib.turbo_sampler_describe(self.pointer(), out))
        return _native.take_text(b, out[0])


def _with_schema(options: SamplingOptions) -> SamplingOptions:
    """The same options with the JSON schema turned into a grammar."""
    if options.grammar is not None:
        raise errors.OptionError(
            "grammar and json_schema were both given", hint="give one of them", asked=options.json_schema
        )
    assert options.json_schema is not None
    return replace(options, grammar=from_schema(options.json_schema), json_schema=None)


def _native_params(b: Binding, options: SamplingOptions, seed: int) -> tuple[Any, list[Any]]:
    """The native parameters, and what must stay alive while they are used."""
    ffi = b.ffi
    params = ffi.new("turbo_sampler_params *")
    b.lib.turbo_sampler_params_init(params)
    for name in _PLAIN:
        setattr(params, _NAMES.get(name, name), getattr(options, name))
    params.seed = seed
    params.no_perf = True
    order = list(options.samplers)
    if options.adaptive_target >= 0 and "adaptive_p" not in order:
        order.append("adaptive_p")
    keep: list[Any] = [ffi.new("char[]", ";".join(order).encode())]
    params.order = keep[0]
    if options.grammar is not None:
        keep.append(ffi.new("char[]", _native.c_text(options.grammar, "the grammar")))
        params.grammar = keep[-1]
    if options.dry_sequence_breakers:
        joined = b"".join(text.encode() + b"\0" for text in options.dry_sequence_breakers)
        keep.append(ffi.new("char[]", joined))
        params.dry_breakers, params.dry_breakers_bytes = keep[-1], len(joined)
    if options.logit_bias:
        keep += [
            ffi.new("int32_t[]", [t for t, _ in options.logit_bias]),
            ffi.new("float[]", [v for _, v in options.logit_bias]),
        ]
        params.bias_tokens, params.bias_values = keep[-2], keep[-1]
        params.n_bias = len(options.logit_bias)
    return params, keep


def check_processors(processors: Sequence[LogitsProcessor] | LogitsProcessor) -> tuple[LogitsProcessor, ...]:
    """Logits processors as a tuple; a single function is taken as one.

    Raises:
        OptionError: one of them cannot be called.
    """
    items = (processors,) if callable(processors) else tuple(processors)
    for item in items:
        if not callable(item):
            raise errors.OptionError(f"a logits processor must be a function, not {item!r}", asked=item)
    return items
