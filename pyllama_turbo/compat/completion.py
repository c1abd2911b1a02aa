"""One completion: a prompt in, text with its end out, as llama-cpp-python counts and cuts it.

Tokens come from the package's own loop; text, stop texts and log probabilities are put together here, because stopping
criteria and the older log-probability format need to know which token a piece of text came from.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ContextFullError, OptionError
from ..generate import generate
from ..sampling import Sampler
from ..tokenizer import StopMatcher, TextStream
from .hooks import Stopped, in_place
from .infill import infill_tokens
from .requests import CompletionRequest, sampling_options
from .responses import Heading, Response, Scored, text_choice, text_logprobs, usage
from .state import recall, remember

if TYPE_CHECKING:
    from ..generate import Event
    from .base import LlamaBase


@dataclass(frozen=True)
class Step:
    """New text, the tokens it came with, and in the last step why the completion ended."""

    text: str
    tokens: tuple[Scored, ...] = ()
    finish_reason: str | None = None


@dataclass
class Task:
    """What to run: everything checked, nothing started.

    Attributes:
        prompt: token ids.
        offset: characters before the first generated one, for log probabilities.
        max_tokens: at most, already cut to what the context holds.
        stop: texts that end it.
        make_sampler: makes the sampler, given `processors`.
        hooks: functions that see the logits before each choice.
        logprobs: alternatives per token, or None.
        echo: report the prompt's log probabilities too.
        strip_space: leave out the space that begins a text without a prompt.
        n_generated: tokens so far, once it runs.
    """

    prompt: list[int]
    max_tokens: int
    stop: tuple[str, ...]
    make_sampler: Callable[..., Sampler]
    hooks: list[Any]
    offset: int = 0
    logprobs: int | None = None
    echo: bool = False
    strip_space: bool = False
    n_generated: int = field(default=0, init=False)


def limit_tokens(llama: LlamaBase, prompt: Sequence[int], max_tokens: int | None) -> int:
    """Tokens that may be generated behind a prompt: what was asked for, at most what the context has left.

    Raises:
        ContextFullError: the prompt leaves no room.
    """
    room = llama.n_ctx() - len(prompt)
    if room <= 0:
        raise ContextFullError(
            f"the prompt has {len(prompt)} tokens, the context holds {llama.n_ctx()}",
            asked=len(prompt),
            limit=llama.n_ctx(),
            hint="make n_ctx larger (a smaller KV type affords it), or shorten the prompt",
        )
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int)):
        raise OptionError(f"max_tokens is {max_tokens!r}", asked=max_tokens, hint="a whole number, or None")
    return room if max_tokens is None or max_tokens <= 0 else min(max_tokens, room)


def prepare(llama: LlamaBase, prompt: str | Sequence[int], request: CompletionRequest) -> Task:
    """A completion request as a task.

    Raises:
        ContextFullError, OptionError, UnsupportedError: as `create_completion`.
    """
    if request.suffix is not None:
        tokens = infill_tokens(llama, _as_text(llama, prompt), request.suffix)
    elif isinstance(prompt, (str, bytes)):
        tokens = llama.tokenize(prompt, special=True)
    else:
        tokens = list(prompt)
    empty = len(prompt) == 0
    if not tokens:
        raise OptionError("the prompt is empty and this model has no BOS token to begin with", asked=prompt)
    return Task(
        prompt=tokens,
        max_tokens=limit_tokens(llama, tokens, request.max_tokens),
        stop=request.stop,
        make_sampler=partial(
            Sampler,
            llama.model,
            **sampling_options(request, llama.last_n_tokens_size, llama.draw_seed(request.seed)),
        ),
        hooks=in_place(request.logits_processor, request.stopping_criteria),
        offset=len(_as_text(llama, prompt)),
        logprobs=_count(request.logprobs),
        echo=request.echo and request.logprobs is not None,
        strip_space=empty,
    )


def _count(logprobs: Any) -> int | None:
    if logprobs is None:
        return None
    if isinstance(logprobs, bool) or not isinstance(logprobs, int) or logprobs < 0:
        raise OptionError(f"logprobs is {logprobs!r}", asked=logprobs, hint="how many alternatives: 0, 1, 2, ...")
    return logprobs


def _as_text(llama: LlamaBase, prompt: str | Sequence[int]) -> str:
    if isinstance(prompt, (str, bytes)):
        return prompt if isinstance(prompt, str) else prompt.decode("utf-8", "replace")
    return llama.detokenize(list(prompt)).decode("utf-8", "replace")


class _Text:
    """Text of the tokens so far: whole characters, without stop texts, and where each token begins."""

    def __init__(self, task: Task) -> None:
        self._bytes = TextStream()
        self.stops = StopMatcher(task.stop)
        self._offset = task.offset
        self._strip = task.strip_space

    def feed(self, piece: bytes) -> tuple[int, str]:
        """Offset of a token, and text that can be shown now."""
        if self._strip:
            piece, self._strip = piece.removeprefix(b" "), False
        start, new = self._offset, self._bytes.feed(piece)
        self._offset += len(new)
        return start, self.stops.feed(new)

    def finish(self) -> str:
        """What was held back and can be shown."""
        return self.stops.feed(self._bytes.finish()) + self.stops.finish()


def steps(llama: LlamaBase, task: Task) -> Generator[Step, None, None]:
    """Run a task. The context is busy until the generator ends or is closed."""
    text, tokenizer = _Text(task), llama.model.tokenizer
    sampler = task.make_sampler(processors=task.hooks)
    reason = "stop"
    recall(llama.ctx, llama.cache, task.prompt)
    options: dict[str, Any] = {"max_tokens": task.max_tokens, "logprobs": task.logprobs, "echo": task.echo}
    with sampler, generate(llama.ctx, task.prompt, sampler=sampler, **options) as run:
        try:
            for event in run:
                if event.token is None:
                    if event.finish_reason is None:
                        yield Step("", _prompt_scores(llama, task.prompt, event))
                    else:
                        reason = "length" if event.finish_reason == "length" else "stop"
                    continue
                task.n_generated += 1
                piece = tokenizer.piece(event.token)
                offset, shown = text.feed(piece)
                yield Step(shown, (Scored(offset, piece, event.logprobs),))
                if text.stops.matched is not None:
                    break
        except Stopped:
            pass
        remember(llama.ctx, llama.cache)
    yield Step(text.finish(), (), reason)


def _prompt_scores(llama: LlamaBase, prompt: list[int], event: Event) -> tuple[Scored, ...]:
    """The prompt's tokens with their log probabilities; a BOS has no text and is left out."""
    pieces = [llama.model.tokenizer.piece(token) for token in prompt]
    scored: list[Scored] = []
    offset = 0
    for i, (piece, entry) in enumerate(zip(pieces, event.prompt_logprobs or ())):
        if i == 0 and prompt[0] == llama.token_bos():
            continue
        scored.append(Scored(offset, piece, entry if scored else None))
        offset += len(piece.decode("utf-8", "ignore"))
    return tuple(scored)


def complete(llama: LlamaBase, prompt: str | Sequence[int], task: Task, request: CompletionRequest) -> Response:
    """The whole completion as one response."""
    heading = Heading.completion(request.model or llama.model_path)
    parts: list[str] = []
    scored: list[Scored] = []
    reason = None
    for step in steps(llama, task):
        parts.append(step.text)
        scored += step.tokens
        reason = step.finish_reason
    text = "".join(parts)
    logprobs = None
    if task.logprobs is not None:
        end = task.offset + len(text)
        logprobs = text_logprobs([s for s in scored if s.offset < end or reason == "length"])
    if request.echo:
        text = _as_text(llama, prompt) + text
    return heading.response(text_choice(text, logprobs, reason), usage(len(task.prompt), task.n_generated))


def stream(llama: LlamaBase, prompt: str | Sequence[int], task: Task, request: CompletionRequest) -> Iterator[Response]:
    """The completion as chunks; the last one has no text and says why it ended."""
    heading = Heading.completion(request.model or llama.model_path)
    if request.echo and not task.echo:
        yield heading.response(text_choice(_as_text(llama, prompt), None, None))
    for step in steps(llama, task):
        if step.text or (step.tokens and task.logprobs is not None):
            text = _as_text(llama, prompt) if task.echo and task.n_generated == 0 else step.text
            logprobs = text_logprobs(step.tokens) if task.logprobs is not None and step.tokens else None
            yield heading.response(text_choice(text, logprobs, None))
        if step.finish_reason is not None:
            yield heading.response(text_choice("", None, step.finish_reason))
