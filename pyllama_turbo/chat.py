"""Chat: rendering messages with the model's template, parsing answers, and a session that keeps the history.

Templates and parsers are upstream's. Messages are dicts with "role" and "content", as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _native, errors
from .generate import Event, Generation, generate
from .options import GenerationOptions, SamplingOptions, split_keywords
from .sampling import Sampler

if TYPE_CHECKING:
    from .context import Context
    from .model import Model

__all__ = ["Chat", "Rendered", "parse", "render"]

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """A chat as the model is asked.

    Attributes:
        prompt: text with special tokens in it; tokenize with parse_special and without another BOS.
        stops: texts that end the answer beside the end-of-turn token.
        grammar: GBNF the answer should follow (tools, JSON schema), or "".
        grammar_lazy: the grammar starts only after one of `triggers`.
        triggers: JSON for `Sampler`.
        format, parser, generation_prompt: for `parse`.
        supports_thinking: the template knows a reasoning part.
    """

    prompt: str
    stops: tuple[str, ...]
    grammar: str
    grammar_lazy: bool
    triggers: str
    format: int
    parser: str
    generation_prompt: str
    supports_thinking: bool


def _check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    checked = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise errors.OptionError(
                f"message {i} is no dict with a 'role'", asked=message, hint='{"role": "user", "content": "..."}'
            )
        checked.append(dict(message))
    if not checked:
        raise errors.OptionError("there are no messages")
    return checked


def render(
    model: Model,
    messages: Sequence[Message],
    *,
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str = "auto",
    add_generation_prompt: bool = True,
    enable_thinking: bool = True,
    json_schema: Mapping[str, Any] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Rendered:
    """The prompt of a chat, by the model's template or another one.

    Args:
        model: its template is used, ChatML if it has none.
        messages: oldest first.
        template: jinja text instead of the model's.
        tools: OpenAI-style tool descriptions.
        tool_choice: "auto", "required" or "none".
        add_generation_prompt: end with the start of the assistant's turn.
        enable_thinking: let a reasoning model reason.
        json_schema: schema the answer must follow.
        template_kwargs: further variables of the template.

    Raises:
        OptionError: a message of the wrong shape, a template that refuses it, with its reason, or one that does not end
            within bounds of time and memory.
    """
    request: dict[str, Any] = {
        "messages": _check_messages(messages),
        "add_generation_prompt": add_generation_prompt,
        "enable_thinking": enable_thinking,
        "reasoning_format": "auto",
    }
    optional = {"template": template, "json_schema": json_schema, "template_kwargs": template_kwargs}
    request.update({name: value for name, value in optional.items() if value is not None})
    if tools is not None:
        request.update(tools=list(tools), tool_choice=tool_choice)
    text = _native.c_json(request, "the chat")
    b = model._binding
    out = b.ffi.new("char **")
    with model.lock:
        _native.check(b, b.lib.turbo_chat_apply(model.pointer(), text, out))
    answer = json.loads(_native.take_text(b, out[0]))
    return Rendered(
        prompt=answer["prompt"],
        stops=tuple(answer["stops"]),
        grammar=answer["grammar"],
        grammar_lazy=answer["grammar_lazy"],
        triggers=json.dumps(answer["triggers"]),
        format=answer["format"],
        parser=answer["parser"],
        generation_prompt=answer["generation_prompt"],
        supports_thinking=answer["supports_thinking"],
    )


def parse(text: str, rendered: Rendered, *, partial: bool = False) -> dict[str, Any]:
    """An answer as a message: content, reasoning_content and tool_calls apart.

    Args:
        text: what the model generated.
        rendered: what it was asked with.
        partial: the answer is not complete yet.

    Raises:
        OptionError: the text does not follow the format.
    """
    request = {
        "text": text,
        "partial": partial,
        "format": rendered.format,
        "parser": rendered.parser,
        "generation_prompt": rendered.generation_prompt,
        "reasoning_format": "auto",
    }
    b = _native.binding()
    out = b.ffi.new("char **")
    _native.check(b, b.lib.turbo_chat_parse(json.dumps(request).encode(), out), asked=text)
    message: dict[str, Any] = json.loads(_native.take_text(b, out[0]))
    return message


def read(text: str, rendered: Rendered, *, complete: bool) -> dict[str, Any]:
    """`parse` for answers of which nothing may be lost: text that does not follow the format is all content."""
    try:
        return parse(text, rendered, partial=not complete)
    except errors.OptionError:
        return {"role": "assistant", "content": text}


def ask(context: Context, messages: Sequence[Message], *, seq: int = 0, **keywords: Any) -> tuple[Rendered, Generation]:
    """Render messages and start generating the answer.

    Args:
        context: where to run.
        messages: oldest first.
        seq: sequence of the context.
        **keywords: as `render`, and fields of `SamplingOptions` and `GenerationOptions`.
    """
    names = ("template", "tools", "tool_choice", "enable_thinking", "json_schema", "template_kwargs")
    rendered = render(context.model, messages, **{n: keywords.pop(n) for n in names if n in keywords})
    _, options = split_keywords(keywords, SamplingOptions, GenerationOptions)
    chosen = {n: v for n, v in keywords.items() if n in SamplingOptions.__dataclass_fields__}
    sampler = make_sampler(context.model, rendered, **chosen)
    rest = {n: v for n, v in keywords.items() if n not in SamplingOptions.__dataclass_fields__}
    rest["stop"] = (*options.stop, *rendered.stops)
    tokens = prompt_tokens(context.model, rendered.prompt)
    return rendered, generate(context, tokens, sampler=sampler, seq=seq, **rest)


def make_sampler(model: Model, rendered: Rendered, **keywords: Any) -> Sampler:
    """A sampler for the answer to a rendered chat: its grammar (tools, JSON schema) unless another one is given.

    Args:
        model: as the chat was rendered for.
        rendered: the chat.
        **keywords: as `Sampler`.
    """
    if rendered.grammar and keywords.get("grammar") is None:
        keywords["grammar"] = rendered.grammar
        if rendered.grammar_lazy:
            keywords |= {"grammar_lazy": True, "triggers": rendered.triggers}
        else:  # such a grammar describes the turn from its first marker on, which the prompt holds already
            keywords["grammar_prefix"] = _grammar_prefix(model, rendered.generation_prompt)
    return Sampler(model, **keywords)


def _grammar_prefix(model: Model, text: str) -> list[int]:
    """Tokens whose text is exactly the start of the assistant's turn.

    Some tokenizers put a space before a text, or join it with a first letter; behind another character they do not.
    """
    tokenizer, raw = model.tokenizer, text.encode()
    for lead in ("", "\n", "\t", "|") if text else ():
        tokens = tokenizer.encode(lead + text, add_special=False, parse_special=True)
        pieces = [tokenizer.piece(token, special=True) for token in tokens]
        for i in range(len(tokens)):
            if b"".join(pieces[i:]) == raw:
                return tokens[i:]
    if text:
        raise errors.UnsupportedError("the start of a turn cannot be written in this model's tokens", asked=text)
    return []


def prompt_tokens(model: Model, prompt: str) -> list[int]:
    """Tokens of a rendered prompt: special tokens read as such, and one BOS also where the template wrote it."""
    tokenizer = model.tokenizer
    tokens = tokenizer.encode(prompt, add_special=True, parse_special=True)
    bos = tokenizer.facts.bos
    return tokens[1:] if len(tokens) > 1 and tokens[0] == tokens[1] == bos else tokens


class Chat:
    """A conversation on one context. The prompt's common start stays in the cache from turn to turn.

    Args:
        context: where to run.
        system: system message, or None.
        **keywords: defaults of every turn, as in `ask`.

    Attributes:
        messages: the history, oldest first; may be edited between turns.
    """

    def __init__(self, context: Context, system: str | None = None, **keywords: Any) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._context = context
        self._keywords = keywords

    def send(self, text: str, **keywords: Any) -> Iterator[Event]:
        """Ask, and give the answer as events. The answer joins the history, also when it is cut short.

        Raises:
            As `generate`; the history is then as before.
        """
        question = {"role": "user", "content": text}
        rendered, run = ask(self._context, [*self.messages, question], **{**self._keywords, **keywords})
        return self._stream(question, rendered, run)

    def _stream(self, question: dict[str, Any], rendered: Rendered, run: Generation) -> Iterator[Event]:
        parts: list[str] = []
        with run:
            try:
                for event in run:
                    parts.append(event.text)
                    yield event
            finally:
                if run.last is not None:
                    complete = run.last.finish_reason in ("stop", "grammar_end")
                    self.messages += [question, read("".join(parts), rendered, complete=complete)]
