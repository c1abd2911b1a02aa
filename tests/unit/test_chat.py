"""Chat: what is asked of the template engine, and how a conversation grows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_native import EOG, FakeLib

from pyllama_turbo import chat, errors
from pyllama_turbo.context import Context
from pyllama_turbo.model import Model


@pytest.fixture
def engine(lib: FakeLib) -> list[dict[str, Any]]:
    """A template engine that joins the messages; gives the list of requests it saw."""
    seen: list[dict[str, Any]] = []

    def apply(model: Any, request: bytes, out: Any) -> int:
        seen.append(json.loads(request))
        prompt = "".join(f"[{m['role']}]{m['content']}" for m in seen[-1]["messages"])
        out[0] = lib.give(
            json.dumps(
                {
                    "prompt": prompt, "stops": ["[end]"], "grammar": "", "grammar_lazy": False, "triggers": [],
                    "format": 0, "parser": "", "generation_prompt": "", "supports_thinking": False,
                }
            )
        )  # fmt: skip
        return 0

    def parse(request: bytes, out: Any) -> int:
        out[0] = lib.give(json.dumps({"role": "assistant", "content": json.loads(request)["text"]}))
        return 0

    lib.turbo_chat_apply = apply  # type: ignore[attr-defined]
    lib.turbo_chat_parse = parse  # type: ignore[attr-defined]
    return seen


def test_a_conversation_keeps_its_history_and_its_cache(
    lib: FakeLib, ctx: Context, engine: list[dict[str, Any]]
) -> None:
    session = chat.Chat(ctx, system="be kind", temperature=0)
    lib.script = [*b"hi", EOG]
    assert "".join(e.text for e in session.send("yo")) == "hi"
    lib.script = [*b"ok", EOG]
    events = list(session.send("and?"))
    assert [m["role"] for m in session.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in session.messages] == ["be kind", "yo", "hi", "and?", "ok"]
    assert events[-1].n_reused > 0
    assert "string" in lib.freed  # texts of the engine are given back


def test_stop_texts_of_the_template_are_added(lib: FakeLib, ctx: Context, engine: list[dict[str, Any]]) -> None:
    lib.script = [*b"a[end]b", EOG]
    _, run = chat.ask(ctx, [{"role": "user", "content": "x"}])
    events = list(run)
    assert "".join(e.text for e in events) == "a"
    assert events[-1].stop_text == "[end]"


def test_an_answer_cut_short_joins_the_history(lib: FakeLib, ctx: Context, engine: list[dict[str, Any]]) -> None:
    lib.script = [*b"long answer", EOG]
    session = chat.Chat(ctx)
    answer = session.send("x")
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    assert [m["content"] for m in session.messages] == ["x", "l"]


def test_options_reach_the_engine(model: Model, engine: list[dict[str, Any]]) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat.render(model, [{"role": "user", "content": "x"}], tools=tools, tool_choice="required", enable_thinking=False)
    assert engine[0]["tools"] == tools
    assert (engine[0]["tool_choice"], engine[0]["enable_thinking"]) == ("required", False)
    assert "template" not in engine[0]


@pytest.mark.parametrize("messages", [[], ["hello"], [{"content": "x"}], [{"role": 3, "content": "x"}]])
def test_messages_of_the_wrong_shape(model: Model, engine: list[dict[str, Any]], messages: list[Any]) -> None:
    with pytest.raises(errors.OptionError):
        chat.render(model, messages)


def test_a_typo_in_the_keywords(ctx: Context, engine: list[dict[str, Any]]) -> None:
    with pytest.raises(errors.UnknownOptionError, match="max_tokens"):
        chat.ask(ctx, [{"role": "user", "content": "x"}], max_token=3)


def test_an_answer_that_follows_no_format_is_kept(lib: FakeLib, ctx: Context, engine: list[dict[str, Any]]) -> None:
    def refuse(request: bytes, out: Any) -> int:
        return lib.TURBO_E_ARGUMENT

    lib.turbo_chat_parse = refuse  # type: ignore[attr-defined]
    lib.script = [*b"odd", EOG]
    session = chat.Chat(ctx)
    list(session.send("x"))
    assert session.messages[-1] == {"role": "assistant", "content": "odd"}
