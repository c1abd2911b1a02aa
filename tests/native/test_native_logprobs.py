"""Log probabilities against a softmax in float64, and how generations end."""

from __future__ import annotations

import numpy as np
import pytest
from native_helpers import PROMPT

from pyllama_turbo import Model, Sampler, errors

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


def log_softmax(logits: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    x = logits.astype(np.float64)
    shifted = x - x.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # type: ignore[type-arg]
    return result


def all_rows(model: Model, ids: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    with model.context(512, logits_all=True) as ctx:
        ctx.decode(ids, outputs="all")
        return log_softmax(ctx.logits)


def test_each_token_and_the_likeliest_ones(tiny: Model) -> None:
    ids = tiny.tokenizer.encode(PROMPT)
    with tiny.context(512) as ctx:
        run = ctx.generate(ids, logprobs=4, **GREEDY)
        reports = [e.logprobs for e in run]
    assert reports[-1] is None  # the last event has no token
    expected = all_rows(tiny, ids + run.tokens)[len(ids) - 1 :]
    for token, report, row in zip(run.tokens, reports, expected):
        assert report is not None and report.token == token
        assert report.logprob == pytest.approx(row[token], abs=2e-2)
        order = np.argsort(-row)[:4]
        assert [c.logprob for c in report.top] == pytest.approx(row[order].tolist(), abs=2e-2)
        assert report.top[0].token == token  # greedy
        assert report.top[0].piece == tiny.tokenizer.piece(token, special=True)
        assert report.text == report.piece.decode("utf-8", "replace")


def test_they_are_the_model_s_own_before_sampling_and_processors(tiny: Model) -> None:
    ids = tiny.tokenizer.encode(PROMPT)
    row = all_rows(tiny, ids)[-1]

    def only_100(history: object, logits: np.ndarray) -> None:  # type: ignore[type-arg]
        logits[:] = -np.inf
        logits[100] = 0.0

    with tiny.context(512) as ctx:
        first = next(ctx.generate(ids, logprobs=0, processors=only_100, temperature=0.1, logit_bias={100: 5.0}))
    assert first.token == 100 and first.logprobs is not None
    assert first.logprobs.logprob == pytest.approx(row[100], abs=1e-2)
    assert first.logprobs.top == ()


@pytest.mark.parametrize("n_batch", [2048, 16])
def test_those_of_the_prompt_come_with_its_echo(tiny: Model, n_batch: int) -> None:
    ids = tiny.tokenizer.encode(PROMPT * 8)  # more than the rows of logits one decode gives
    expected = all_rows(tiny, ids)
    with tiny.context(512, n_batch=n_batch, n_ubatch=n_batch) as ctx:
        assert len(ids) > ctx.n_outputs_max
        plain = ctx.complete(ids, **GREEDY)
        for events in (
            list(ctx.generate(ids, echo=True, logprobs=2, **GREEDY)),
            list(ctx.generate_many([ids], echo=True, logprobs=2, **GREEDY)),
        ):
            scores = events[0].prompt_logprobs
            assert scores is not None and len(scores) == len(ids) and scores[0] is None
            for i, score in enumerate(scores[1:], 1):
                assert score is not None and score.token == ids[i] and len(score.top) == 2
                assert score.logprob == pytest.approx(expected[i - 1][ids[i]], abs=5e-2)
            assert events[0].text.strip() == (PROMPT * 8).strip()
            assert "".join(e.text for e in events[1:]) == plain
        scored = list(ctx.generate(ids, echo=True, logprobs=0, max_tokens=0))
        assert [e.finish_reason for e in scored] == [None, "length"] and scored[0].prompt_logprobs is not None


def test_how_many_can_be_asked_for(tiny: Model) -> None:
    with tiny.context(256) as ctx:
        for value in (-1, "x", 1.5, tiny.facts.n_vocab + 1):
            with pytest.raises(errors.OptionError, match="logprobs"):
                ctx.generate(PROMPT, logprobs=value)
        event = next(ctx.generate(PROMPT, logprobs=tiny.facts.n_vocab))
        assert event.logprobs is not None and len(event.logprobs.top) == tiny.facts.n_vocab
        assert sum(np.exp(c.logprob) for c in event.logprobs.top) == pytest.approx(1.0, abs=1e-3)
        assert next(ctx.generate(PROMPT, logprobs=False)).logprobs is None


@pytest.mark.parametrize(
    ("gbnf", "reason"),
    [
        ('root ::= "yes" | "no"', "grammar_end"),
        ('root ::= "a" "b"?', "grammar_end"),  # ends by itself only behind the b, which bias makes certain
        ('root ::= "x"+', "length"),
    ],
)
def test_a_grammar_that_is_complete_ends_the_text(tiny: Model, gbnf: str, reason: str) -> None:
    b = tiny.tokenizer.encode("b", add_special=False)[-1]
    with tiny.context(256) as ctx:
        for _ in range(2):  # a second time, with the cache of the first
            run = ctx.generate(PROMPT, grammar=gbnf, max_tokens=8, ignore_eos=True, logit_bias={b: 50.0}, seed=1)
            assert list(run)[-1].finish_reason == reason


def test_a_sampler_starts_its_grammar_anew(tiny: Model) -> None:
    sampler = Sampler(tiny, grammar='root ::= "yes"', seed=3)
    with tiny.context(256) as ctx:
        texts = [ctx.complete(PROMPT, sampler=sampler, max_tokens=9) for _ in range(3)]
    assert texts == ["yes"] * 3
    with pytest.raises(errors.OptionError, match="fits the grammar"):
        sampler.reset()
        assert tiny.tokenizer.facts.eos is not None
        sampler.accept(tiny.tokenizer.facts.eos, generated=True)  # would abort the process in upstream's grammar


def test_a_json_schema_shapes_the_text(tiny: Model) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    with tiny.context(256) as ctx:
        text = ctx.complete(PROMPT, json_schema=schema, max_tokens=60, seed=2)
    assert '"a"' in text and text.startswith("{")
    with pytest.raises(errors.OptionError, match="both"):
        Sampler(tiny, json_schema=schema, grammar='root ::= "x"')
    with pytest.raises(errors.OptionError):
        Sampler(tiny, json_schema="{not json")
