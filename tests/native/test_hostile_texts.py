"""Templates, schemas, grammars and prompts that would hang, overflow the stack or fill the memory: refused, fast."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllama_turbo import Model, Sampler, chat, errors, grammar

MESSAGES = [{"role": "user", "content": "hello"}]
MAX_SECONDS = 30.0  # a bound of 5 s of CPU time, on a machine that does other things too
MAX_GROWTH_MIB = 600.0  # a bound of 256 MiB, and the stack of what recursed

TEMPLATES = {
    "nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
    "a long range": "{% for a in range(1000000000000) %}{% endfor %}",
    "a doubling text": "{% set n = namespace(x='abcd') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a repeated text": "{{ 'a' * 100000000000 }}",
    "brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "a long sum": "{{ 1" + "+1" * 60_000 + " }}",
    "many negations": "{{ " + "not " * 30_000 + "1 }}",
    "a macro that calls itself": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "too long": "x" * 200_000,
}
GRAMMARS = {
    "an inverted repetition": 'root ::= "a"{5,2}',
    "brackets": "root ::= " + "(" * 200_000 + '"a"' + ")" * 200_000,
    "a repeated literal": 'root ::= "' + "a" * 100_000 + '"{2000}',
    "left recursion": 'root ::= root "a" | "b"',
    "a zero byte": 'root ::= "a"\0',
    "a lone surrogate": 'root ::= "\ud800"',
}
SCHEMAS = {
    "nested objects": '{"properties":{"a":' * 50_000 + "{}" + "}}" * 50_000,
    "nested arrays": "[" * 1_000_000,
    "a lone surrogate": '{"const":"\ud800"}',
    "no JSON": "{",
}


@pytest.fixture(autouse=True)
def bounded() -> Any:
    """Each of these ends soon and takes little memory."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - start < MAX_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MAX_GROWTH_MIB


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(tiny: Model, name: str) -> None:
    with pytest.raises(errors.OptionError, match="chat template (needs|is nested|takes|has)"):
        chat.render(tiny, MESSAGES, template=TEMPLATES[name])
    assert "hello" in chat.render(tiny, MESSAGES).prompt  # and the next one is rendered as ever


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(tiny: Model, name: str) -> None:
    with pytest.raises(errors.OptionError, match="grammar"):
        Sampler(tiny, grammar=GRAMMARS[name])


def test_grammars_that_look_alike_still_parse(tiny: Model) -> None:
    Sampler(tiny, grammar='root ::= "{5,2}" [{5,2}\\]] # {5,2}\n').close()
    Sampler(tiny, grammar='root ::= "a"{2,5} "\\"{5,2}"').close()


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str) -> None:
    with pytest.raises(errors.OptionError):
        grammar.from_schema(SCHEMAS[name])


def test_messages_without_json(tiny: Model) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for content in (nested, {1, 2}):
        with pytest.raises(errors.OptionError, match="cannot be written as JSON"):
            chat.render(tiny, [{"role": "user", "content": content}])


def test_a_long_chat_is_no_attack(tiny: Model) -> None:
    many = [{"role": "user", "content": "hello there " * 8}] * 5_000
    assert chat.render(tiny, many).prompt.count("hello") == 40_000


@pytest.mark.parametrize("pre", ["deepseek-llm", "gpt-4o", "default"])
def test_long_words_do_not_overflow_the_stack(tmp_path: Path, bpe_model: Callable[..., Path], pre: str) -> None:
    with Model.open(bpe_model(tmp_path, pre), vocab_only=True) as model:
        for text in ("a" * 200_000, "1" * 200_000, " " * 200_000, "\u4f60" * 70_000):
            assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


def test_bytes_that_are_no_text(tmp_path: Path, bpe_model: Callable[..., Path]) -> None:
    with Model.open(bpe_model(tmp_path, "default"), vocab_only=True) as model:
        with pytest.raises(errors.OptionError, match="not valid UTF-8"):
            model.tokenizer.encode(b"a\xf7\x88\x90\x8d\x9bb")
        assert model.tokenizer.encode(b"\xff\xfe")
