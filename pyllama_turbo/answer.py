"""One text in the making: chooses tokens from logits, turns them into events, and knows when it is over.

It runs nothing itself: `generate` drives one answer, `batch` several, each row of logits going to its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import errors
from ._context_params import as_ids
from .events import Event
from .logprobs import Distribution, TokenLogprobs
from .options import GenerationOptions, SamplingOptions, split_keywords
from .sampling import LogitsProcessor, Sampler, check_processors
from .tokenizer import StopMatcher, TextStream

if TYPE_CHECKING:
    from .context import Context

__all__ = ["Answer", "make_answer"]

_new = object.__new__


class Answer:
    """The state of one generation.

    Attributes:
        prompt, tokens: the prompt, and what was generated, without a token that ended it.
        n_reused: tokens of the prompt that were in the cache already.
        reason: why it is over, None while it is not.
        position: where the newest token goes in the cache.
        seq, job: labels of its events; `seq` is where it runs.
        cancelled: set from any thread; heard at the next step.
    """

    def __init__(
        self, context: Context, prompt: list[int], sampler: Sampler, options: GenerationOptions, seq: int, job: int
    ) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        self.sampler = sampler
        self.options = options
        self.reason: str | None = None
        self.position = len(prompt)
        self.seq = seq
        self.job = job
        self.cancelled = False
        self._context = context
        self._tokenizer = context.model.tokenizer
        self._text = TextStream()
        self._stops = StopMatcher(options.stop)
        self._history = list(prompt) if sampler.processors else []
        self._limit = -1 if options.max_tokens is None else options.max_tokens
        self.n_reused = 0
        self._prompt_tok_s = 0.0
        self._decode_start = 0.0
        self._prompt_logprobs: list[TokenLogprobs | None] = [None]

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the logits of every prompt token are needed."""
        return self.options.echo and self.options.logprobs is not None

    def start(self) -> None:
        """Let the sampler see the prompt."""
        self.sampler.start(self.prompt)

    def prefilled(self, n_reused: int, seconds: float) -> None:
        """Note how the prompt got into the cache."""
        self.n_reused = n_reused
        self._prompt_tok_s = (len(self.prompt) - n_reused) / seconds if seconds > 0 else 0.0

    def score_prompt(self, first_row: int, first: int, n: int) -> None:
        """Note the log probabilities behind prompt tokens `first` to `first + n - 1`, from rows of the last decode."""
        logits, count = self._context.logits, self.options.logprobs or 0
        for i in range(first, min(first + n, len(self.prompt) - 1)):
            row = Distribution(logits[first_row + i - first], count)
            self._prompt_logprobs.append(row.of(self.prompt[i + 1], self._tokenizer))

    def echo(self) -> Event:
        """The prompt as an event."""
        scores = tuple(self._prompt_logprobs) if self.wants_prompt_logprobs else None
        return self._event(self._tokenizer.decode(self.prompt, remove_bos=True), None, prompt_logprobs=scores)

    @property
    def steps(self) -> bool:
        """Whether `Context.step` may choose its tokens: nothing in Python looks at the logits first."""
        return not self.sampler.processors and self.options.logprobs is None

    def take(self, row: int = -1) -> Event | None:
        """Choose the next token from a row of logits. None, with `reason` set, where no token is to be shown."""
        if len(self.tokens) == self._limit:
            self.reason = "length"
            return None
        count = self.options.logprobs
        chances = None if count is None else Distribution(self._context.logits[row], count)
        token = self.sampler.next(self._context, row, history=self._history)
        return self.put(token, chances)

    def put(self, token: int, chances: Distribution | None = None) -> Event | None:
        """Take in a token that the sampler chose; as `take`."""
        tokens, sampler = self.tokens, self.sampler
        if not tokens:
            self._decode_start = time.perf_counter()
        if self._tokenizer.is_eog(token):
            self.reason = "stop"
            return None
        tokens.append(token)
        if sampler.processors:
            self._history.append(token)
        text = self._text.feed(self._tokenizer.piece(token, special=self.options.special))
        if self.options.stop:
            text = self._stops.feed(text)
        if self._stops.matched is not None:
            self.reason = "stop"
        elif sampler.constrained and sampler.grammar_complete():
            self.reason = "grammar_end"
        elif len(tokens) == self._limit:
            self.reason = "length"
        return self._event(text, token, None if chances is None else chances.of(token, self._tokenizer))

    def make_room(self) -> None:
        """Before the newest token is run: shift the context where it is full, or end with "length"."""
        if self.position < self._context.facts.n_ctx_seq:
            return
        if not self.options.context_shift:
            self.reason = "length"
            return
        self.position -= self._context.seqs.discard_oldest(self.seq, min(self.options.n_keep, len(self.prompt)))

    def last(self) -> Event:
        """The event that ends it: what text was held back, and the reason."""
        rest = self._stops.feed(self._text.finish()) + self._stops.finish()
        return self._event(rest, None)

    def _event(
        self,
        text: str,
        token: int | None,
        logprobs: TokenLogprobs | None = None,
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None,
    ) -> Event:
        n = len(self.tokens)
        rate = 0.0
        if n > 1:
            elapsed = time.perf_counter() - self._decode_start
            rate = (n - 1) / elapsed if elapsed > 0 else 0.0
        ended = token is None and self.reason is not None
        # One event a token: the frozen class's own constructor, which sets field by field, takes three times as long.
        event = _new(Event)
        event.__dict__.update(
            text=text,
            token=token,
            n_prompt=len(self.prompt),
            n_reused=self.n_reused,
            n_generated=n,
            prompt_tok_s=self._prompt_tok_s,
            decode_tok_s=rate,
            finish_reason=self.reason if ended else None,
            stop_text=self._stops.matched if ended else None,
            seed=self.sampler.seed,
            job=self.job,
            seq=self.seq,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        return event


def make_answer(
    context: Context,
    prompt: str | bytes | Sequence[int],
    *,
    sampler: Sampler | None = None,
    processors: Sequence[LogitsProcessor] | LogitsProcessor = (),
    seq: int = 0,
    job: int = 0,
    parse_special: bool = False,
    **keywords: Any,
) -> Answer:
    """The answer to a prompt, from what the user gave; arguments and errors as `generate`."""
    if not context.facts.has_memory:
        raise errors.UnsupportedError(
            "this model only encodes: it cannot continue a text", hint="use `embed` on a context with embeddings=True"
        )
    sampling, options = split_keywords(keywords, SamplingOptions, GenerationOptions)
    ids = _prompt_tokens(context, prompt, parse_special)
    if options.logprobs is not None and options.logprobs > context.model.facts.n_vocab:
        raise errors.OptionError(
            f"logprobs is {options.logprobs}, the vocabulary has {context.model.facts.n_vocab}",
            asked=options.logprobs,
            limit=context.model.facts.n_vocab,
        )
    chain = sampler or Sampler(context.model, sampling, processors=check_processors(processors))
    return Answer(context, ids, chain, options, seq, job)


def _prompt_tokens(context: Context, prompt: str | bytes | Sequence[int], parse_special: bool) -> list[int]:
    if isinstance(prompt, (str, bytes)):
        ids = context.model.tokenizer.encode(prompt, parse_special=parse_special)
    elif isinstance(prompt, Iterable):
        ids = as_ids(items) if (items := list(prompt)) else []
    else:
        raise errors.OptionError(f"a prompt is a text or a list of tokens, not {prompt!r}", asked=prompt)
    if not ids:
        raise errors.OptionError("the prompt is empty", hint="give a text, or at least the BOS token")
    n_vocab = context.model.facts.n_vocab
    wrong = next((t for t in (min(ids), max(ids)) if not 0 <= t < n_vocab), None)
    if wrong is not None:
        raise errors.OptionError(f"token {wrong} is outside the vocabulary of {n_vocab}", asked=wrong, limit=n_vocab)
    return ids
