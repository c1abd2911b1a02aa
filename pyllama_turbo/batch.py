"""Several texts at once: sequences of one context that share every batch.

    with model.context(8192, n_seq_max=4) as ctx, ctx.generate_many(["one", "two", "three"], max_tokens=50) as batch:
        for event in batch:
            print(event.job, event.text)

More prompts than sequences wait for a free one. A prompt that starts as another sequence does takes that start from
its cache. Each job has its own sampler, stop texts and limits, and gives the text it would give alone. (A batch sums
in another order than a single token does: the last bits of logits differ, as with any change of batch size.)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import errors, logs
from .answer import Answer, make_answer
from .events import Event
from .generate import astream
from .sampling import LogitsProcessor, Sampler

if TYPE_CHECKING:
    from typing_extensions import Self

    from .context import Context

__all__ = ["Batch"]


@dataclass
class _Part:
    """What a step runs of one job, and which rows of logits are its own."""

    answer: Answer
    n_tokens: int
    first_row: int
    n_rows: int
    in_prompt: bool


@dataclass
class _Plan:
    """One batch: parallel lists, and the jobs in it."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)
    n_rows: int = 0

    def put(self, answer: Answer, tokens: Sequence[int], position: int, outputs: Sequence[bool], prompt: bool) -> None:
        """Append tokens of one job."""
        self.tokens += tokens
        self.positions += range(position, position + len(tokens))
        self.seqs += [answer.seq] * len(tokens)
        self.outputs += outputs
        self.parts.append(_Part(answer, len(tokens), self.n_rows, sum(outputs), prompt))
        self.n_rows += sum(outputs)


class _Scheduler:
    """Which job runs where, and what goes into the next batch."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.lock = threading.RLock()
        self.events: deque[Event] = deque()
        self.cancelled = False
        self.n_jobs = 0
        self._waiting: deque[Answer] = deque()
        self._running: dict[int, Answer] = {}  # by sequence
        self._computed: dict[int, int] = {}  # by job: tokens of its prompt that are in the cache
        self._since: dict[int, float] = {}  # by job: when it began
        self._full = False  # a job had to go back to waiting; no other begins until one ends

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do or to say."""
        return bool(self.events or self._waiting or self._running)

    def enqueue(self, answer: Answer) -> None:
        """Let a job wait for a free sequence."""
        self._waiting.append(answer)

    def clear(self) -> None:
        """Forget all jobs."""
        self.events.clear()
        self._waiting.clear()
        self._running.clear()
        self._computed.clear()

    def find(self, job: int) -> Answer | None:
        """A job that is not over."""
        return next((a for a in (*self._waiting, *self._running.values()) if a.job == job), None)

    def cancel(self) -> None:
        """Stop everything, the running step included; from any thread."""
        self.cancelled = True
        self.context.cancel(self)

    def step(self) -> None:
        """Run one batch and collect its events."""
        self._end_cancelled()
        self._admit()
        plan = self._plan()
        if not plan.parts:
            return
        try:
            self.context.decode_batch(plan.tokens, plan.positions, plan.seqs, plan.outputs)
        except errors.ContextFullError:
            self._relieve()
            return
        except errors.AbortedError:
            if not self.cancelled:
                self._drop(plan)
                raise
            self._end_cancelled()
            return
        except BaseException:
            self._drop(plan)
            raise
        for part in plan.parts:
            self._advance(part)

    def _drop(self, plan: _Plan) -> None:
        """Forget the jobs of a batch that failed: nobody knows how far each of them came."""
        for part in plan.parts:
            self._running.pop(part.answer.seq, None)
        self._full = False

    def _end_cancelled(self) -> None:
        for answer in [*self._running.values(), *self._waiting]:
            if self.cancelled or answer.cancelled:
                answer.reason = "abort"
                self._end(answer)

    def _end(self, answer: Answer) -> None:
        self.events.append(answer.last())
        if answer in self._waiting:
            self._waiting.remove(answer)
        if self._running.get(answer.seq) is answer:
            del self._running[answer.seq]
        self._computed.pop(answer.job, None)
        self._full = False

    # -- starting a job ------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        seqs = self.context.seqs
        while self._waiting and not self._full:
            free = [s for s in range(self.context.facts.n_seq_max) if s not in self._running]
            if not free:
                return
            answer = self._waiting.popleft()
            fresh = not answer.options.reuse or answer.wants_prompt_logprobs
            wanted = [] if fresh else answer.prompt
            answer.seq = max(free, key=lambda s: seqs.shared_prefix(s, wanted))
            self._running[answer.seq] = answer
            self._since[answer.job] = time.perf_counter()
            if not fresh:
                self._share_prefix(answer)
            self._computed[answer.job] = seqs.keep_prefix(answer.seq, wanted)
            answer.prefilled(self._computed[answer.job], 0.0)
            answer.start()

    def _share_prefix(self, answer: Answer) -> None:
        """Copy the start of the prompt from the sequence that holds most of it, if that is more than its own does."""
        context = self.context
        seqs, prompt = context.seqs, answer.prompt
        source = max(range(context.facts.n_seq_max), key=lambda s: seqs.shared_prefix(s, prompt))
        n = seqs.shared_prefix(source, prompt)
        if n <= seqs.shared_prefix(answer.seq, prompt):
            return
        if context.facts.is_recurrent and n < seqs.next_position(source):
            return  # its state cannot be cut back to the shared start
        if context.facts.kv_unified and not context.facts.is_recurrent:
            seqs.copy(source, answer.seq, 0, n)
        else:  # only whole sequences can be copied; what is too much is cut off, where the cache can do that
            seqs.copy(source, answer.seq)

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _plan(self) -> _Plan:
        """One token of every job that generates, then as much of the waiting prompts as has room."""
        plan, facts = _Plan(), self.context.facts
        most = min(facts.n_batch, self.context.n_outputs_max)
        prompts = []
        for answer in list(self._running.values()):
            if self._computed[answer.job] < len(answer.prompt):
                prompts.append(answer)
                continue
            if plan.n_rows == most:
                continue
            answer.make_room()
            if answer.reason is not None:
                self._end(answer)
                continue
            plan.put(answer, answer.tokens[-1:], answer.position, [True], False)
        for answer in prompts:
            first = self._computed[answer.job]
            room = facts.n_batch - len(plan.tokens)
            if answer.wants_prompt_logprobs:
                room = min(room, self.context.n_outputs_max - plan.n_rows)
            tokens = answer.prompt[first : first + room]
            if not tokens:
                continue
            last = first + len(tokens) == len(answer.prompt)
            outputs = [answer.wants_prompt_logprobs] * (len(tokens) - 1) + [answer.wants_prompt_logprobs or last]
            if plan.n_rows + sum(outputs) > self.context.n_outputs_max:
                continue
            plan.put(answer, tokens, first, outputs, True)
        return plan

    def _advance(self, part: _Part) -> None:
        answer = part.answer
        if part.in_prompt:
            first = self._computed[answer.job]
            self._computed[answer.job] += part.n_tokens
            if answer.wants_prompt_logprobs:
                answer.score_prompt(part.first_row, first, part.n_tokens)
            if self._computed[answer.job] < len(answer.prompt):
                return
            answer.prefilled(answer.n_reused, time.perf_counter() - self._since.pop(answer.job))
            if answer.options.echo:
                self.events.append(answer.echo())
        else:
            answer.position += 1
        try:
            event = answer.take(part.first_row + part.n_rows - 1)
        except BaseException:  # a logits processor of the user's: its job is over, the others go on
            del self._running[answer.seq]
            self._full = False
            raise
        if event is not None:
            self.events.append(event)
        if answer.reason is not None:
            self._end(answer)

    def _relieve(self) -> None:
        """The shared cache is full: drop what no job needs; else the newest job waits, or ends where it is alone."""
        seqs = self.context.seqs
        idle = [s for s in range(self.context.facts.n_seq_max) if s not in self._running and seqs.next_position(s)]
        if idle:
            for seq in idle:
                seqs.remove(seq)
            return
        answer = max(self._running.values(), key=lambda a: a.job)
        if answer.tokens:
            answer.reason = "length"
            self._end(answer)
        elif len(self._running) > 1:
            del self._running[answer.seq]
            self._waiting.appendleft(answer)
            self._full = True
        else:
            del self._running[answer.seq]
            raise errors.ContextFullError(
                f"the prompt of {len(answer.prompt)} tokens finds no room",
                asked=len(answer.prompt),
                limit=self.context.facts.n_ctx_seq,
                hint="make n_ctx larger",
            )


class Batch(Iterator[Event]):
    """An iterator of the events of several jobs, also an asynchronous one; made by `Context.batch`.

    Events of a job come in order, those of different jobs mixed; each job's last event carries its finish reason.
    `add` may be called at any time, also while iterating. The context is reserved until all jobs are over and read,
    until `close`, or until the batch is dropped; after that, another `add` reserves it again.
    """

    def __init__(self, context: Context) -> None:
        # the context knows the scheduler, never this object: so dropping the batch gives it back at once
        self._scheduler = _Scheduler(context)

    def add(
        self,
        prompt: str | Sequence[int],
        *,
        sampler: Sampler | None = None,
        processors: Sequence[LogitsProcessor] | LogitsProcessor = (),
        parse_special: bool = False,
        **keywords: Any,
    ) -> int:
        """Add a prompt; arguments as `pyllama_turbo.generate.generate`, without `seq`.

        Returns:
            Its number, the `job` of its events.

        Raises:
            ContextFullError: the prompt is longer than a sequence.
            BusyError: the context is generating for someone else.
            ModelLoadError: the mapped model file was cut or overwritten.
            OptionError, UnknownOptionError: a bad value, a keyword that does not exist.
        """
        scheduler = self._scheduler
        with scheduler.lock:
            answer = make_answer(
                scheduler.context,
                prompt,
                sampler=sampler,
                processors=processors,
                job=scheduler.n_jobs,
                parse_special=parse_special,
                **keywords,
            )
            scheduler.context.model.files.check()
            scheduler.context.check_room(len(answer.prompt))
            scheduler.context.claim(scheduler)
            scheduler.cancelled = False
            scheduler.n_jobs += 1
            scheduler.enqueue(answer)
            return answer.job

    def __next__(self) -> Event:
        scheduler = self._scheduler
        with scheduler.lock:
            while not scheduler.events:
                if not scheduler.busy:
                    self._release()
                    raise StopIteration
                scheduler.step()
            return scheduler.events.popleft()

    def __aiter__(self) -> AsyncIterator[Event]:
        return astream(self)

    def cancel(self, job: int | None = None) -> None:
        """Stop one job, after the running step, or all of them at once; from any thread. Their last event says "abort".

        A job that is over, or never was, is no error.
        """
        if job is None:
            self._scheduler.cancel()
        else:
            answer = self._scheduler.find(job)
            if answer is not None:
                answer.cancelled = True

    def close(self) -> None:
        """Drop all jobs and give the context back."""
        scheduler = self._scheduler
        if not scheduler.lock.acquire(blocking=False):  # another thread is inside a step: stop that first
            scheduler.cancel()
            scheduler.lock.acquire()
        try:
            scheduler.clear()
            self._release()
        finally:
            scheduler.lock.release()

    def _release(self) -> None:
        context = self._scheduler.context
        context.release(self._scheduler)
        logs.drain(context._binding.ffi, context._binding.lib)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_scheduler"):
            self.close()
