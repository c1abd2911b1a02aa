"""Real text from a real model (SmolLM2-135M, head dim 64), where it was fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllama_turbo import Context, Model, chat

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def model(smollm: Path) -> Iterator[Model]:
    with Model.open(smollm) as opened:
        yield opened


def words(text: str) -> list[str]:
    return text.lower().split()


@pytest.mark.parametrize("name", ["q8_0", "turbo4", "turbo3", "turbo3_tcq", "turbo4_tcq"])
def test_greedy_text_reads_like_f16(model: Model, name: str) -> None:
    with model.context(512, kv="f16") as plain, model.context(512, kv=name) as compressed:
        expected = plain.complete(PROMPT, temperature=0, max_tokens=16)
        text = compressed.complete(PROMPT, temperature=0, max_tokens=16)
    assert words(text)[:1] == words(expected)[:1] == ["paris."]
    assert len(set(words(text))) > 3  # no loop of one word
    assert "\ufffd" not in text


@pytest.mark.parametrize("name", ["f16", "turbo3"])
def test_a_chat_answers_the_question(model: Model, name: str) -> None:
    with model.context(1024, kv=name) as ctx:
        session = chat.Chat(ctx, temperature=0, max_tokens=40)
        answer = "".join(event.text for event in session.send("What is the capital of France? Answer briefly."))
    assert "Paris" in answer
    assert "<|im_" not in answer


def test_bytes_of_the_cache_are_exact(model: Model) -> None:
    def cache_bytes(name: str) -> int:
        with model.context(2048, kv=name) as ctx:
            return ctx.kv.bytes

    per_token = 30 * 2 * 3 * 64  # layers, K and V, KV heads, head dim
    assert cache_bytes("f16") == 2048 * per_token * 2
    assert cache_bytes("turbo3") * 8 == 2048 * per_token * 3.25


def test_twenty_greedy_runs_have_one_text(model: Model) -> None:
    texts = set()
    with model.context(256, kv="turbo3") as ctx:
        for _ in range(20):
            texts.add(_run(ctx))
    assert len(texts) == 1


def _run(ctx: Context) -> str:
    return ctx.complete(PROMPT, temperature=0, max_tokens=4)
