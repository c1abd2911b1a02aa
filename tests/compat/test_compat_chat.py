"""`create_chat_completion`: templates of real models, reasoning, tool calls, schemas, the dicts to the key.

A logits processor makes the model write a given answer, so that what is read from it can be compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_turbo import Chat, Llama, Model, chat, errors
from pyllama_turbo.chat_parts import AnswerReader
from pyllama_turbo.compat.formats import TEMPLATES as FORMATS

USER = [{"role": "user", "content": "What is the weather in Paris?"}]
TURNS = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello to you."},
    {"role": "user", "content": "Who are you?"},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# How a real template's model calls the tool, and what it thinks before.
CALLS = {
    "Qwen-Qwen2.5-7B-Instruct": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "Qwen-Qwen3-0.6B": "<think>\nLook it up.\n</think>\n\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "mistralai-Mistral-Nemo-Instruct-2407": "[TOOL_CALLS]"
    '[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "123456789"}]',
    "meta-llama-Llama-3.1-8B-Instruct": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "Look it up.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    'function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}',
}
THINKING = {
    "Qwen-Qwen3-0.6B": "<think>\nI am a model.\n</think>\n\nA model.",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "I am a model.\n</think>\n\nA model.",
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>I am a model.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>A model.",
}
Opened = Callable[..., Any]


@pytest.fixture
def with_template(tiny_model: Callable[..., Path], templates: dict[str, str]) -> Opened:
    """`with_template(name)`: a tiny model that has the chat template of a real one."""

    @contextmanager
    def opened(name: str) -> Iterator[Model]:
        with Model.open(tiny_model(chat_template=templates[name])) as model:
            yield model

    return opened


def writes(llm: Llama, text: str) -> Callable[[Any, Any], Any]:
    """A logits processor that makes the model write `text` and end."""
    tokens = llm.tokenize(text, add_bos=False)
    if llm.detokenize(tokens[:1]) == b" ":  # the tokenizer's own, which a grammar need not allow
        del tokens[0]
    script = [*tokens, llm.token_eos()]
    start: list[int] = []

    def force(input_ids: Any, scores: Any) -> Any:
        if not start:
            start.append(len(input_ids))
        forced = np.full_like(scores, -np.inf)
        forced[script[min(len(input_ids) - start[0], len(script) - 1)]] = 0.0
        return forced

    return force


@pytest.mark.parametrize("name", sorted({*CALLS, "google-gemma-2-2b-it"}))
def test_real_templates_render_several_turns(with_template: Opened, name: str) -> None:
    with with_template(name) as model:
        prompt = chat.render(model, TURNS).prompt
        for message in TURNS:
            assert message["content"] in prompt
        places = [prompt.index(m["content"]) for m in TURNS if m["role"] != "system"]
        assert places == sorted(places)
        opened = chat.render(model, TURNS, add_generation_prompt=False).prompt
        assert prompt.startswith(opened.rstrip())
        tokens = chat.prompt_tokens(model, prompt)
        assert tokens[:2] != [1, 1]


def test_the_date_of_a_template(with_template: Opened) -> None:
    with with_template("meta-llama-Llama-3.1-8B-Instruct") as model:
        assert re.search(r"Today Date: \d\d \w{3} 20\d\d", chat.render(model, USER).prompt)


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tool_calls_of_real_templates_are_data(with_template: Opened, name: str, choice: str) -> None:
    with with_template(name) as model:
        rendered = chat.render(model, USER, tools=[WEATHER], tool_choice=choice)
        assert "get_weather" in rendered.prompt or "DeepSeek" in name  # that template has no place for tools
        message = chat.parse(CALLS[name], rendered)
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
        assert not message["content"].strip()
        assert message.get("reasoning_content", "").strip() == ("Look it up." if "Look" in CALLS[name] else "")


@pytest.mark.parametrize("name", sorted(THINKING))
def test_reasoning_is_apart(with_template: Opened, name: str) -> None:
    with with_template(name) as model:
        rendered = chat.render(model, USER)
        assert rendered.supports_thinking
        message = chat.parse(THINKING[name], rendered)
        assert (message["content"].strip(), message["reasoning_content"].strip()) == ("A model.", "I am a model.")


@pytest.mark.parametrize("name", sorted(CALLS))
def test_differences_add_up_to_the_answer(with_template: Opened, name: str) -> None:
    """Character by character: no part is given twice, none is lost."""
    with with_template(name) as model:
        rendered = chat.render(model, USER, tools=[WEATHER])
        reader = AnswerReader(rendered, tools=True)
        deltas = [reader.feed(character) for character in CALLS[name]] + [reader.finish(complete=True)]
        message = reader.message(complete=True)
        tools = [tool for delta in deltas for tool in delta.tools]
        assert [tool.name for tool in tools if tool.name] == ["get_weather"]
        assert "".join(tool.arguments for tool in tools) == message["tool_calls"][0]["function"]["arguments"]
        assert "".join(delta.reasoning for delta in deltas) == message.get("reasoning_content", "")
        assert "".join(delta.content for delta in deltas).strip() == ""


def test_text_that_does_not_follow_the_format_is_content(with_template: Opened) -> None:
    with with_template("openai-gpt-oss-120b") as model:
        reader = AnswerReader(chat.render(model, USER))
        reader.feed("no channel at all")
        assert reader.message(complete=True) == {"role": "assistant", "content": "no channel at all"}


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"])
def test_an_answer_with_a_thought(tiny_model: Callable[..., Path], templates: dict[str, str], name: str) -> None:
    with Llama(tiny_model(chat_template=templates[name]), n_ctx=2048, n_threads=1) as llm:
        ask: dict[str, Any] = {"messages": USER, "temperature": 0}
        response = llm.create_chat_completion(**ask, logits_processor=writes(llm, THINKING[name]))
        message = response["choices"][0]["message"]
        assert (message["content"].strip(), message["reasoning_content"].strip()) == ("A model.", "I am a model.")
        chunks = list(llm.create_chat_completion(**ask, logits_processor=writes(llm, THINKING[name]), stream=True))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        for part in ("content", "reasoning_content"):
            assert "".join(delta.get(part, "") for delta in deltas) == message[part]


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"])
def test_tool_calls_in_responses(tiny_model: Callable[..., Path], templates: dict[str, str], name: str) -> None:
    with Llama(tiny_model(chat_template=templates[name]), n_ctx=4096, n_threads=1) as llm:
        ask: dict[str, Any] = {"messages": USER, "tools": [WEATHER], "temperature": 0}
        (choice,) = llm.create_chat_completion(**ask, logits_processor=writes(llm, CALLS[name]))["choices"]
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        (call,) = message["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
        assert call["id"].startswith("call_")
        assert message["function_call"] == call["function"]
        assert message["content"] is None
        chunks = list(llm.create_chat_completion(**ask, logits_processor=writes(llm, CALLS[name]), stream=True))
        calls = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert (calls[0]["index"], calls[0]["type"], calls[0]["function"]["name"]) == (0, "function", "get_weather")
        assert all(list(c) == ["index", "function"] for c in calls[1:])
        assert "".join(c["function"]["arguments"] for c in calls) == call["function"]["arguments"]
        assert chunks[-1]["choices"][0] == {
            "index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls",
        }  # fmt: skip
        # the answer of the tool goes back to the model
        history = [*USER, message, {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
        assert llm.create_chat_completion(history, tools=[WEATHER], max_tokens=2)["usage"]["completion_tokens"] <= 2


def test_a_required_tool_is_called_whatever_the_model_would_say(
    tiny_model: Callable[..., Path], templates: dict[str, str]
) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "switch",
            "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
        },
    }
    path = tiny_model(chat_template=templates["meta-llama-Llama-3.1-8B-Instruct"])
    with Llama(path, n_ctx=4096, n_threads=1, seed=1) as llm:
        (choice,) = llm.create_chat_completion(USER, tools=[tool], tool_choice="required", max_tokens=400)["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "switch"
        assert isinstance(json.loads(call["function"]["arguments"])["on"], bool)


def test_a_tool_by_name_is_called_at_once(tiny_model: Callable[..., Path], templates: dict[str, str]) -> None:
    """Whatever the model would rather write: the template tells it of the tool, the grammar leaves the arguments."""
    tool = {
        "type": "function",
        "function": {"name": "switch", "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}}},
    }
    named = {"type": "function", "function": {"name": "switch"}}
    for name in ("Qwen-Qwen3-0.6B", "mistralai-Mistral-Nemo-Instruct-2407", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"):
        with Llama(tiny_model(chat_template=templates[name]), n_ctx=4096, n_threads=1, seed=1) as llm:
            ask = {"messages": USER, "tools": [tool, WEATHER], "tool_choice": named, "max_tokens": 300}
            (choice,) = llm.create_chat_completion(**ask)["choices"]
            (call,) = choice["message"]["tool_calls"]
            assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "switch")
            assert set(json.loads(call["function"]["arguments"])) <= {"on"}


def test_tools_and_a_template_without(llm: Llama) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    grammar = {"max_tokens": 200, "seed": 2}
    with pytest.raises(errors.UnsupportedError, match="knows no tools"):
        llm.create_chat_completion(USER, tools=[WEATHER])
    with pytest.raises(errors.OptionError, match="not among the tools"):
        llm.create_chat_completion(USER, tools=[WEATHER], tool_choice={"function": {"name": "other"}})
    with pytest.raises(errors.OptionError, match="tool_choice is 'perhaps'"):
        llm.create_chat_completion(USER, tools=[WEATHER], tool_choice="perhaps")
    with pytest.raises(errors.OptionError, match="no function with a name"):
        llm.create_chat_completion(USER, tools=[{"name": "x"}])
    assert llm.create_chat_completion(USER, tools=[WEATHER], tool_choice="none", max_tokens=2)["choices"]
    old = llm.create_chat_completion(
        USER, functions=[WEATHER["function"]], function_call={"name": "get_weather"},
        logits_processor=writes(llm, '{"city": "Paris"}'), **grammar,
    )  # fmt: skip
    assert json.loads(old["choices"][0]["message"]["function_call"]["arguments"]) == {"city": "Paris"}
    chunks = llm.create_chat_completion(
        USER, tools=[WEATHER], tool_choice=named, stream=True, logits_processor=writes(llm, '{"city": "Oslo"}'),
        **grammar,
    )  # fmt: skip
    calls = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert json.loads("".join(c["function"]["arguments"] for c in calls)) == {"city": "Oslo"}


def test_the_response(llm: Llama, path: Path) -> None:
    response = llm.create_chat_completion(USER, max_tokens=6)
    assert list(response) == ["id", "object", "created", "model", "choices", "usage"]
    assert re.fullmatch(r"chatcmpl-[0-9a-f-]{36}", response["id"])
    assert (response["object"], response["model"]) == ("chat.completion", str(path))
    (choice,) = response["choices"]
    assert list(choice) == ["index", "message", "logprobs", "finish_reason"]
    assert list(choice["message"]) == ["role", "content"]
    assert (choice["message"]["role"], choice["logprobs"], choice["finish_reason"]) == ("assistant", None, "length")
    assert response["usage"]["completion_tokens"] == 6


def test_the_chunks(llm: Llama) -> None:
    ask: dict[str, Any] = {"messages": USER, "max_tokens": 6, "temperature": 0}
    chunks = list(llm.create_chat_completion(stream=True, **ask))
    assert all(list(chunk) == ["id", "object", "created", "model", "choices"] for chunk in chunks)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0] == {"index": 0, "delta": {"role": "assistant"}, "logprobs": None, "finish_reason": None}
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    text = "".join(choice["delta"]["content"] for choice in choices[1:-1])
    assert text == llm.create_chat_completion(**ask)["choices"][0]["message"]["content"]


def test_log_probabilities(llm: Llama) -> None:
    ask: dict[str, Any] = {"messages": USER, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "temperature": 0}
    logprobs = llm.create_chat_completion(**ask)["choices"][0]["logprobs"]
    assert list(logprobs) == ["content", "refusal"]
    assert len(logprobs["content"]) == 4
    for row in logprobs["content"]:
        assert list(row) == ["token", "bytes", "logprob", "top_logprobs"]
        assert len(row["top_logprobs"]) == 2
        assert row["logprob"] <= row["top_logprobs"][0]["logprob"] <= 0
    streamed = [c["choices"][0]["logprobs"] for c in llm.create_chat_completion(stream=True, **ask)]
    assert sum(len(entry["content"]) for entry in streamed if entry) == 4


@pytest.mark.parametrize(
    ("response_format", "pattern"),
    [
        ({"type": "json_object"}, r"\{.*"),
        ({"type": "json_object", "schema": {"enum": ["red", "blue"]}}, r'"(red|blue)"'),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 3}}}, "3"),
        ({"type": "text"}, ".*"),
    ],
)
def test_response_formats(llm: Llama, response_format: dict[str, Any], pattern: str) -> None:
    response = llm.create_chat_completion(USER, response_format=response_format, max_tokens=40)
    assert re.fullmatch(pattern, response["choices"][0]["message"]["content"], re.DOTALL)


@pytest.mark.parametrize("bad", [{"type": "yaml"}, "json", {"type": "json_schema"}])
def test_response_formats_that_do_not_exist(llm: Llama, bad: Any) -> None:
    with pytest.raises(errors.OptionError):
        llm.create_chat_completion(USER, response_format=bad)


@pytest.mark.parametrize(
    ("messages", "kind", "message"),
    [
        ([], errors.OptionError, "there are no messages"),
        ("hello", errors.OptionError, "a list of dicts"),
        (["hello"], errors.OptionError, "no dict with a 'role'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], errors.UnsupportedError, "only text"),
    ],
)
def test_bad_messages(llm: Llama, messages: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        llm.create_chat_completion(messages)
    with pytest.raises(errors.UnknownOptionError, match="did you mean max_tokens"):
        llm.create_chat_completion(USER, max_token=1)


def test_parts_of_text_are_joined(llm: Llama) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " it?"}]}]
    assert llm.create_chat_completion(parts, max_tokens=1)["usage"]["prompt_tokens"] > 5


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_by_name(path: Path, name: str) -> None:
    with Llama(path, n_ctx=512, chat_format=name) as llm:
        assert llm.chat_format == name
        prompt = chat.render(llm.model, TURNS, template=llm.chat_template).prompt
        places = [prompt.index(message["content"]) for message in TURNS]
        assert places == sorted(places)
        assert llm.create_chat_completion(TURNS, max_tokens=2)["choices"][0]["message"]["role"] == "assistant"


def test_a_template_of_the_callers(path: Path) -> None:
    with Llama(path, n_ctx=256, chat_template="{{ messages[-1].content }}!") as llm:
        assert chat.render(llm.model, USER, template=llm.chat_template).prompt == USER[0]["content"] + "!"


def test_a_session_keeps_reasoning_and_calls_in_its_history(with_template: Opened) -> None:
    with with_template("Qwen-Qwen3-0.6B") as model, model.context(2048) as ctx:
        session = Chat(ctx, "Be kind.", max_tokens=3)
        list(session.send("Hello!"))
        assert [m["role"] for m in session.messages] == ["system", "user", "assistant"]
        events = list(session.send("And now?"))
        assert events[-1].n_reused > 0
