"""Chats: messages in, OpenAI's chat responses out, through the model's template and its answer format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import chat
from ..chat_parts import AnswerReader
from ..errors import OptionError, UnsupportedError
from ..grammar import from_schema
from .completion import Task, limit_tokens, steps
from .hooks import in_place
from .offered import IMAGES
from .requests import ChatRequest, sampling_options
from .responses import Heading, Response, Scored, chat_logprobs, usage
from .toolcalls import ForcedStream, Tools, as_call, chunk_of, known_to_template, named_calls, tools_of

if TYPE_CHECKING:
    from .base import LlamaBase


@dataclass(frozen=True)
class Question:
    """A chat request, rendered: what to run and how to read the answer.

    Attributes:
        task: what to run.
        rendered: the prompt and its answer format.
        tools: the answer may hold tool calls.
        forced: name of the tool whose arguments the whole answer is, or "".
    """

    task: Task
    rendered: chat.Rendered
    tools: bool
    forced: str = ""

    def reader(self) -> AnswerReader:
        """Reads the answer."""
        return AnswerReader(self.rendered, tools=self.tools)


def _check_content(messages: Any) -> None:
    """Refuse what is not text before the template engine sees it."""
    if not isinstance(messages, (list, tuple)):
        raise OptionError(f"messages is {messages!r}", asked=messages, hint="a list of dicts with role and content")
    for message in messages:
        parts = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(parts, list) and any(p.get("type") != "text" for p in parts if isinstance(p, Mapping)):
            raise UnsupportedError(IMAGES, asked=message)


def _schema(response_format: Any) -> Mapping[str, Any] | None:
    """The JSON schema that a response format asks for."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema") or {"type": "object"}
    elif kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema", response_format.get("schema"))
    else:
        raise OptionError(
            f"response_format is {response_format!r}", asked=response_format, hint="text, json_object or json_schema"
        )
    if not isinstance(schema, Mapping):
        raise OptionError("the response format has no schema", asked=response_format, hint='give "schema"')
    return schema


def prepare(llama: LlamaBase, messages: Sequence[Mapping[str, Any]], request: ChatRequest) -> Question:
    """A chat request as a task.

    Raises:
        OptionError, UnsupportedError, ContextFullError: as `create_chat_completion`.
    """
    _check_content(messages)
    tools, schema = tools_of(request), _schema(request.response_format)
    rendered = _render(llama, messages, request, tools, schema)
    sampling = sampling_options(request, llama.last_n_tokens_size, llama.draw_seed(request.seed))
    forced = ""
    if tools.named or not known_to_template(tools, rendered):
        # the whole answer is the arguments: no turn of the template has to be read from it, and no thought comes first
        forced, parameters = tools.forced()
        rendered = _render(llama, messages, replace(request, enable_thinking=False), tools, None)
        rendered = replace(rendered, grammar="", supports_thinking=False)
        sampling["grammar"] = from_schema(dict(parameters))
    tokens = chat.prompt_tokens(llama.model, rendered.prompt)
    task = Task(
        prompt=tokens,
        max_tokens=limit_tokens(llama, tokens, request.max_tokens),
        stop=(*request.stop, *rendered.stops, *llama.chat_stops),
        make_sampler=partial(chat.make_sampler, llama.model, rendered, **sampling),
        hooks=in_place(request.logits_processor),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )
    return Question(task, rendered, bool(tools.offered) and not forced, forced)


def _render(
    llama: LlamaBase,
    messages: Sequence[Mapping[str, Any]],
    request: ChatRequest,
    tools: Tools,
    schema: Mapping[str, Any] | None,
) -> chat.Rendered:
    return chat.render(
        llama.model,
        messages,
        template=llama.chat_template,
        tools=tools.offered or None,
        tool_choice="auto" if tools.named else tools.choice,
        json_schema=schema,
        template_kwargs=request.template_kwargs,
        enable_thinking=request.enable_thinking,
    )


def _reason(reason: str | None, message: Mapping[str, Any]) -> str | None:
    return "tool_calls" if reason == "stop" and message.get("tool_calls") else reason


def _message(parsed: Mapping[str, Any]) -> Response:
    message: Response = {"role": "assistant", "content": parsed.get("content")}
    if parsed.get("reasoning_content"):
        message["reasoning_content"] = parsed["reasoning_content"]
    if parsed.get("tool_calls"):
        calls = named_calls(parsed["tool_calls"])
        message |= {"content": message["content"] or None, "tool_calls": calls, "function_call": calls[0]["function"]}
    return message


def complete(llama: LlamaBase, question: Question, request: ChatRequest) -> Response:
    """The whole answer as one response."""
    heading = Heading.chat(request.model or llama.model_path, stream=False)
    reader = question.reader()
    scored: list[Scored] = []
    reason = None
    for step in steps(llama, question.task):
        reader.add(step.text)
        scored += step.tokens
        reason = step.finish_reason
    parsed = reader.message(complete=reason == "stop")
    message = _message(as_call(question.forced, parsed.get("content") or "") if question.forced else parsed)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": chat_logprobs(scored) if question.task.logprobs is not None else None,
        "finish_reason": _reason(reason, message),
    }
    return heading.response(choice, usage(len(question.task.prompt), question.task.n_generated))


def _chunk(
    heading: Heading, delta: Response, logprobs: Response | None = None, finish_reason: str | None = None
) -> Response:
    return heading.response({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason})


def stream(llama: LlamaBase, question: Question, request: ChatRequest) -> Iterator[Response]:
    """The answer as chunks: the role first, then what each step adds, then an empty one with the finish reason."""
    heading = Heading.chat(request.model or llama.model_path, stream=True)
    reader = question.reader()
    forced = ForcedStream(question.forced) if question.forced else None
    called = False
    yield _chunk(heading, {"role": "assistant"})
    for step in steps(llama, question.task):
        if step.finish_reason is None:
            delta = reader.feed(step.text)
        else:
            delta = reader.finish(step.text, complete=step.finish_reason == "stop")
        if forced:
            delta = forced.convert(delta)
        logprobs = chat_logprobs(step.tokens) if question.task.logprobs is not None and step.tokens else None
        parts: list[Response] = []
        if delta.reasoning:
            parts.append({"reasoning_content": delta.reasoning})
        if delta.content or (logprobs and not delta):
            parts.append({"content": delta.content})
        parts += [{"tool_calls": [chunk_of(tool)]} for tool in delta.tools]
        called = called or bool(delta.tools)
        for i, part in enumerate(parts):
            yield _chunk(heading, part, logprobs if i == 0 else None)
        if step.finish_reason is not None:
            reason = "tool_calls" if called and step.finish_reason == "stop" else step.finish_reason
            yield _chunk(heading, {}, None, reason)
