"""The token loop: a prompt in, a stream of events out.

    with Model.open("model.gguf") as model, model.context(4096, kv="turbo3") as ctx:
        for event in ctx.generate("Once upon a time", max_tokens=64):
            print(event.text, end="")

`Context.generate` and `Context.complete` are short for the functions here; `batch` runs several prompts together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from . import errors, logs
from .answer import Answer, make_answer
from .events import Event
from .sampling import LogitsProcessor, Sampler

if TYPE_CHECKING:
    from typing_extensions import Self

    from .context import Context

__all__ = ["Event", "Generation", "agenerate", "astream", "complete", "generate"]


class Generation(Iterator[Event]):
    """An iterator of events, also an asynchronous one; made by `generate`.

    The context is reserved until it ends, is closed or is dropped.
    """

    def __init__(self, loop: _Loop) -> None:
        # the running generator knows the loop, never this object: so dropping the iterator ends it at once
        self._loop = loop
        self._steps = loop.run()
        self.last: Event | None = None
        loop.context.claim(loop)

    @property
    def tokens(self) -> list[int]:
        """The generated tokens, without the one that ended the generation."""
        return self._loop.answer.tokens

    @property
    def seed(self) -> int:
        """The sampler's seed."""
        return self._loop.answer.sampler.seed

    def __next__(self) -> Event:
        self.last = next(self._steps)
        return self.last

    def __aiter__(self) -> AsyncIterator[Event]:
        return astream(self)

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
    """Runs one answer on a context."""

    def __init__(self, context: Context, answer: Answer) -> None:
        self.context = context
        self.answer = answer

    def cancel(self) -> None:
        """Stop the running step and make it the last."""
        self.answer.cancelled = True
        self.context.cancel(self)

    def run(self) -> Generator[Event, None, None]:
        """The events; the context is given back at the end, whatever happens."""
        try:
            yield from self._guarded()
        finally:
            self.context.release(self)
            logs.drain(self.context._binding.ffi, self.context._binding.lib)

    def _guarded(self) -> Generator[Event, None, None]:
        answer = self.answer
        try:
            self._prefill()
            if answer.options.echo:
                yield answer.echo()
            yield from self._decode()
        except errors.AbortedError:
            if not answer.cancelled:
                raise
            answer.reason = "abort"
        yield answer.last()

    def _prefill(self) -> None:
        answer, context = self.answer, self.context
        if answer.cancelled:
            raise errors.AbortedError("cancelled before the prompt")
        answer.start()
        start = time.perf_counter()
        if answer.wants_prompt_logprobs:
            n_reused = 0
            context.check_room(len(answer.prompt))
            context.seqs.keep_prefix(answer.seq, [])
            done = 0
            for rows in context.iter_logits(answer.prompt, seq=answer.seq):
                answer.score_prompt(0, done, rows.shape[0])
                done += rows.shape[0]
        else:
            n_reused = context.prefill(answer.prompt, seq=answer.seq, reuse=answer.options.reuse).n_reused
        answer.prefilled(n_reused, time.perf_counter() - start)

    def _decode(self) -> Generator[Event, None, None]:
        """Yield an event per token, until the answer has its reason."""
        answer, context = self.answer, self.context
        steps, sampler, seq = answer.steps, answer.sampler, answer.seq
        event = answer.take()
        while True:
            if event is not None:
                yield event
            if answer.reason is None:
                if answer.cancelled:
                    answer.reason = "abort"
                else:
                    answer.make_room()
            if answer.reason is not None:
                return
            if steps:
                event = answer.put(context.step(sampler, answer.tokens[-1], answer.position, seq))
            else:
                context.decode_one(answer.tokens[-1], answer.position, seq)
                event = answer.take()
            answer.position += 1


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
    answer = make_answer(
        context,
        prompt,
        sampler=sampler,
        processors=processors,
        seq=seq,
        parse_special=parse_special,
        **keywords,
    )
    return Generation(_Loop(context, answer))


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


class Run(Protocol):
    """What `astream` can drive: `Generation` and `Batch`."""

    def __next__(self) -> Event: ...

    def cancel(self) -> None:
        """Stop, from any thread."""

    def close(self) -> None:
        """End the run and give the context back."""


async def astream(run: Run) -> AsyncIterator[Event]:
    """The events of a generation or a batch for async code: each step runs in a worker thread.

    Cancelling the task, or leaving the loop, stops the running step and gives the context back.
    """
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


def agenerate(context: Context, prompt: str | Sequence[int], **keywords: Any) -> AsyncIterator[Event]:
    """`generate` for async code; `async for` on what `generate` returns does the same."""
    return astream(generate(context, prompt, **keywords))
