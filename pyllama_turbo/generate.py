"""The token loop: a prompt in, a stream of events out.

    with Model.open("model.gguf") as model, model.context(4096, kv="turbo3") as ctx:
        for event in ctx.generate("Once upon a time", max_tokens=64):
            print(event.text, end="")

`Context.generate` and `Context.complete` are short for the functions here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import errors, logs
from .options import GenerationOptions, SamplingOptions, split_keywords
from .sampling import LogitsProcessor, Sampler, check_processors
from .tokenizer import StopMatcher, TextStream

if TYPE_CHECKING:
    from typing_extensions import Self

    from .context import Context

__all__ = ["Event", "Generation", "agenerate", "complete", "generate"]


@dataclass(frozen=True)
class Event:
    """One step of a generation.

    Attributes:
        text: new text that can be shown; may be empty while a character or a stop text is incomplete.
        token: the token of this step, None for the last event and for the echoed prompt.
        n_prompt: tokens of the prompt, of which `n_reused` were in the cache already.
        n_generated: tokens generated so far.
        prompt_tok_s: tokens of the prompt computed per second, 0 if none were.
        decode_tok_s: tokens generated per second, the prompt's time not counted; 0 before the second.
        finish_reason: None, and in the last event "stop", "length" or "abort".
        stop_text: the stop text that ended it, if one did.
        seed: the sampler's seed.
    """

    text: str
    token: int | None
    n_prompt: int
    n_reused: int
    n_generated: int
    prompt_tok_s: float
    decode_tok_s: float
    finish_reason: str | None
    stop_text: str | None
    seed: int


class Generation(Iterator[Event]):
    """An iterator of events; made by `generate`. The context is reserved until it ends, is closed or is dropped."""

    def __init__(self, loop: _Loop) -> None:
        # the running generator knows the loop, never this object: so dropping the iterator ends it at once
        self._loop = loop
        self._steps = loop.run()
        self.last: Event | None = None
        loop.context.claim(loop)

    @property
    def tokens(self) -> list[int]:
        """The generated tokens, without the one that ended the generation."""
        return self._loop.tokens

    @property
    def seed(self) -> int:
        """The sampler's seed."""
        return self._loop.sampler.seed

    def __next__(self) -> Event:
        self.last = next(self._steps)
        return self.last

    def cancel(self) -> None:
        """Stop, from any thread: the iterator gives a last event with finish reason "abort"."""
        self._loop.cancel()

    def close(self) -> None:
        """End the generation and give the context back. Done by itself when the iterator ends or is dropped."""
        try:
            self._steps.close()
        except ValueError:  # another thread is inside a step: stop that, it gives the context back itself
            self.cancel()
            return
        self._loop.context.release(self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Loop:
    """What a generation does, and its counters."""

    def __init__(
        self, context: Context, prompt: list[int], sampler: Sampler, options: GenerationOptions, seq: int
    ) -> None:
        self.context = context
        self.sampler = sampler
        self.tokens: list[int] = []
        self._prompt = prompt
        self._options = options
        self._seq = seq
        self._cancelled = False
        self._n_reused = 0
        self._prompt_tok_s = 0.0
        self._decode_start = 0.0

    def cancel(self) -> None:
        """Stop the running step and make it the last."""
        self._cancelled = True
        if self.context.user is self:
            self.context.cancel()

    def run(self) -> Generator[Event, None, None]:
        """The events; the context is given back at the end, whatever happens."""
        try:
            yield from self._guarded()
        finally:
            self.context.release(self)
            logs.drain(self.context._binding.ffi, self.context._binding.lib)

    def _guarded(self) -> Generator[Event, None, None]:
        text, stops = TextStream(), StopMatcher(self._options.stop)
        try:
            self._prefill()
            if self._options.echo:
                tokenizer = self.context.model.tokenizer
                yield self._event(tokenizer.decode(self._prompt, remove_bos=True), None)
            reason = yield from self._decode(text, stops)
        except errors.AbortedError:
            if not self._cancelled:
                raise
            reason = "abort"
        rest = stops.feed(text.finish()) + stops.finish()
        yield self._event(rest, None, reason, stops.matched)

    def _prefill(self) -> None:
        if self._cancelled:
            raise errors.AbortedError("cancelled before the prompt")
        self.sampler.start(self._prompt)
        start = time.perf_counter()
        done = self.context.prefill(self._prompt, seq=self._seq, reuse=self._options.reuse)
        seconds = time.perf_counter() - start
        self._n_reused = done.n_reused
        self._prompt_tok_s = done.n_computed / seconds if seconds > 0 else 0.0

    def _decode(self, text: TextStream, stops: StopMatcher) -> Generator[Event, None, str]:
        """Yield an event per token; return the finish reason."""
        context, sampler, options = self.context, self.sampler, self._options
        tokenizer, tokens = context.model.tokenizer, self.tokens
        history = list(self._prompt) if sampler.processors else []
        pos = len(self._prompt)
        limit = -1 if options.max_tokens is None else options.max_tokens
        while len(tokens) != limit:
            token = sampler.next(context, history=history)
            if len(tokens) == 0:
                self._decode_start = time.perf_counter()
            if tokenizer.is_eog(token):
                return "stop"
            tokens.append(token)
            if sampler.processors:
                history.append(token)
            yield self._event(stops.feed(text.feed(tokenizer.piece(token, special=options.special))), token)
            if stops.matched is not None:
                return "stop"
            if self._cancelled:
                return "abort"
            if len(tokens) == limit:
                break
            if pos >= context.facts.n_ctx_seq:
                if not options.context_shift:
                    return "length"
                pos -= context.seqs.discard_oldest(self._seq, min(options.n_keep, len(self._prompt)))
            context.decode_one(token, pos, self._seq)
            pos += 1
        return "length"

    def _event(self, text: str, token: int | None, reason: str | None = None, stop: str | None = None) -> Event:
        n = len(self.tokens)
        rate = 0.0
        if n > 1:
            elapsed = time.perf_counter() - self._decode_start
            rate = (n - 1) / elapsed if elapsed > 0 else 0.0
        return Event(
            text,
            token,
            len(self._prompt),
            self._n_reused,
            n,
            self._prompt_tok_s,
            rate,
            reason,
            stop,
            self.sampler.seed,
        )


def _prompt_tokens(context: Context, prompt: str | Sequence[int], special: bool) -> list[int]:
    if isinstance(prompt, (str, bytes)):
        return context.model.tokenizer.encode(prompt, parse_special=special)
    return list(prompt)


def generate(
    context: Context,
    prompt: str | Sequence[int],
    *,
    sampler: Sampler | None = None,
    processors: Sequence[LogitsProcessor] | LogitsProcessor = (),
    seq: int = 0,
    parse_special: bool = False,
    **keywords: Any,
) -> Generation:
    """Generate from a prompt.

    Args:
        context: where to run; what its cache already holds of the prompt is not computed again.
        prompt: a text, tokenized with the model's BOS, or token ids as they are.
        sampler: an own sampler, started anew with the prompt; otherwise one is made from the keywords.
        processors: functions that change the logits before each choice, see `Sampler`.
        seq: sequence of the context to use.
        parse_special: read special tokens in a text prompt; not for text from strangers.
        **keywords: fields of `SamplingOptions` and `GenerationOptions`: temperature, top_k, seed, max_tokens, stop, ...

    Returns:
        An iterator of `Event`. The prompt is run when the first event is taken.

    Raises:
        ContextFullError: the prompt does not fit.
        BusyError: the context is generating already.
        OptionError, UnknownOptionError: a bad value, a keyword that does not exist.
    """
    sampling, options = split_keywords(keywords, SamplingOptions, GenerationOptions)
    ids = _prompt_tokens(context, prompt, parse_special)
    if not ids:
        raise errors.OptionError("the prompt is empty", hint="give a text, or at least the BOS token")
    chain = sampler or Sampler(context.model, sampling, processors=check_processors(processors))
    return Generation(_Loop(context, ids, chain, options, seq))


def complete(context: Context, prompt: str | Sequence[int], **keywords: Any) -> tuple[str, Event]:
    """Generate to the end; the whole text, and the last event with its counters. Arguments as `generate`."""
    parts: list[str] = []
    with generate(context, prompt, **keywords) as run:
        for event in run:
            parts.append(event.text)
        last = run.last
    if last is None:
        raise errors.InternalError("the generation gave no event")
    return "".join(parts), last


async def agenerate(context: Context, prompt: str | Sequence[int], **keywords: Any) -> AsyncIterator[Event]:
    """`generate` for async code: each step runs in a worker thread, so the event loop stays free.

    Cancelling the task, or leaving the loop, stops the running step and gives the context back.
    """
    run = generate(context, prompt, **keywords)
    end = object()
    step: asyncio.Task[Any] | None = None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, run, end))
            event = await asyncio.shield(step)
            step = None
            if event is end:
                return
            assert isinstance(event, Event)
            yield event
    finally:
        if step is not None:
            run.cancel()
            await asyncio.wait([step])
        run.close()
