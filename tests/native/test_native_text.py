"""Tokenizer, sampling, chat and structured output of the real library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native_helpers import PROMPT

from pyllama_turbo import Model, Sampler, chat, errors, grammar, state
from pyllama_turbo.generate import complete

TEXTS = ["hello world", "naïve café", "🦙 漢字", "  two  spaces\n\ttab", "", "a" * 500, "\ud800 lone"]


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_tokens_give_the_text_back(tiny: Model, text: str) -> None:
    tokenizer = tiny.tokenizer
    ids = tokenizer.encode(text, add_special=False)
    joined = b"".join(tokenizer.piece(i) for i in ids).decode()
    assert joined == text or joined.strip() == text.strip()
    assert tokenizer.decode(ids).strip() == text.strip()


def test_odd_input_does_not_crash(tiny: Model) -> None:
    for raw in (b"\xff\xfe", b"\x00abc", "\ud800".encode("utf-8", "surrogatepass"), TEXTS[-1]):
        assert isinstance(tiny.tokenizer.encode(raw), list)


def test_tokens_outside_the_vocabulary(tiny: Model) -> None:
    for token in (-1, tiny.facts.n_vocab):
        for call in (tiny.tokenizer.piece, tiny.tokenizer.is_eog, tiny.tokenizer.is_control):
            with pytest.raises(errors.OptionError, match="vocabulary"):
                call(token)
        with pytest.raises(errors.OptionError, match="vocabulary"):
            tiny.tokenizer.decode([token])


def test_a_model_without_tokenizer_says_so(open_model: Callable[..., Model]) -> None:
    model = open_model(vocab=False)
    with pytest.raises(errors.UnsupportedError, match="no tokenizer"):
        model.tokenizer.encode("x")


def test_streamed_text_equals_blocking_text(tiny: Model) -> None:
    with tiny.context(512) as ctx:
        blocking, _ = complete(ctx, PROMPT, seed=3, temperature=1.5, max_tokens=60, ignore_eos=True)
        streamed = "".join(
            e.text for e in ctx.generate(PROMPT, seed=3, temperature=1.5, max_tokens=60, ignore_eos=True)
        )
        assert streamed == blocking


def test_one_seed_one_text_also_after_a_cache_hit(tiny: Model) -> None:
    with tiny.context(512) as ctx:
        texts = {complete(ctx, PROMPT, seed=5, temperature=1.0, max_tokens=20)[0] for _ in range(4)}
        other = {complete(ctx, PROMPT, temperature=1.0, max_tokens=20)[1].seed for _ in range(3)}
    assert len(texts) == 1
    assert len(other) == 3


def test_greedy_takes_the_highest_logit(tiny: Model) -> None:
    ids = tiny.tokenizer.encode(PROMPT)
    with tiny.context(256) as ctx:
        ctx.prefill(ids)
        best = int(ctx.logits[0].argmax())
        for sampler in (Sampler(tiny, temperature=0), Sampler(tiny, top_k=1), Sampler(tiny, temperature=0, top_k=0)):
            assert sampler.next(ctx) == best


def test_sampling_follows_the_probabilities(tiny: Model) -> None:
    with tiny.context(256) as ctx:
        ctx.prefill(tiny.tokenizer.encode(PROMPT))
        logits = ctx.logits[0].astype(np.float64)
        top = np.argsort(logits)[::-1][:3]
        p = np.exp(logits[top] - logits[top].max())
        sampler = Sampler(tiny, temperature=1.0, top_k=3, top_p=1.0, min_p=0.0, seed=1)
        counts = Counter(sampler.next(ctx) for _ in range(2000))
    assert set(counts) <= set(top.tolist())
    assert np.abs(np.array([counts[int(t)] for t in top]) / 2000 - p / p.sum()).max() < 0.05


@pytest.mark.parametrize(
    "keywords",
    [
        {"typical_p": 0.9}, {"top_n_sigma": 1.0}, {"xtc_probability": 0.5}, {"repeat_penalty": 1.2}, {"mirostat": 1},
        {"mirostat": 2}, {"dry_multiplier": 0.8}, {"dynatemp_range": 0.5}, {"adaptive_target": 0.3},
        {"samplers": "top_k;temperature"}, {"dry_multiplier": 1.0, "dry_sequence_breakers": ["\n", "."]},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_every_sampler_runs(tiny: Model, keywords: dict[str, object]) -> None:
    with tiny.context(256) as ctx:
        _, last = complete(ctx, PROMPT, seed=1, max_tokens=8, ignore_eos=True, **keywords)
    assert last.n_generated == 8
    assert Sampler(tiny, **keywords).describe()


def test_logit_bias_forbids_and_forces(tiny: Model) -> None:
    ids = tiny.tokenizer.encode(PROMPT)
    with tiny.context(256) as ctx:
        ctx.prefill(ids)
        best = int(ctx.logits[0].argmax())
        assert Sampler(tiny, temperature=0, logit_bias={best: -float("inf")}).next(ctx) != best
        assert Sampler(tiny, temperature=0, logit_bias={300: 1000.0}).next(ctx) == 300
    with pytest.raises(errors.OptionError, match="logit bias"):
        Sampler(tiny, logit_bias={tiny.facts.n_vocab: 1.0})


def test_a_processor_decides(tiny: Model) -> None:
    def only(history: object, logits: np.ndarray) -> None:  # type: ignore[type-arg]
        logits[:] = -np.inf
        logits[100] = 0.0

    with tiny.context(256) as ctx:
        run = ctx.generate(PROMPT, processors=only, max_tokens=3)
        list(run)
    assert run.tokens == [100, 100, 100]


def test_a_grammar_shapes_the_text(tiny: Model) -> None:
    with tiny.context(256) as ctx:
        text, last = complete(ctx, PROMPT, grammar='root ::= "yes" | "no"', max_tokens=10, seed=2)
        assert text in ("yes", "no") and last.finish_reason == "grammar_end"
        gbnf = grammar.from_schema({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
        text, _ = complete(ctx, PROMPT, grammar=gbnf, max_tokens=60, seed=2)
        assert set(json.loads(text)) == {"a"}


@pytest.mark.parametrize(
    "text", ["", "   # nothing\n", 'root ::= ("a"', "root ::= nope", 'start ::= "a"', "root ::= root", "$$"]
)
def test_bad_grammars_are_refused(tiny: Model, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.OptionError):
        Sampler(tiny, grammar=text)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("schema", ["{", {"type": "what"}, {"$ref": "#/nowhere"}])
def test_bad_schemas_are_refused(schema: object) -> None:
    with pytest.raises(errors.OptionError):
        grammar.from_schema(schema)  # type: ignore[arg-type]


def test_chat_templates_render_and_refuse(tiny: Model) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    rendered = chat.render(tiny, messages)
    assert "hello" in rendered.prompt
    longer = chat.render(tiny, [*messages, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "2"}])
    assert longer.prompt.startswith(rendered.prompt.split("hello")[0])
    with pytest.raises(errors.OptionError, match="no such thing"):
        chat.render(tiny, messages, template="{{ raise_exception('no such thing') }}")
    with pytest.raises(errors.OptionError):
        chat.render(tiny, messages, template="{% for %}")


def test_chat_answers_are_parsed(tiny: Model) -> None:
    rendered = chat.render(tiny, [{"role": "user", "content": "hello"}])
    assert chat.parse("an answer", rendered)["content"] == "an answer"
    with tiny.context(512) as ctx:
        session = chat.Chat(ctx, seed=1, max_tokens=5)
        first = list(session.send("hello"))
        second = list(session.send("and?"))
    assert first[-1].n_reused == 0 and second[-1].n_reused > 0
    assert [m["role"] for m in session.messages] == ["user", "assistant"] * 2


@pytest.mark.parametrize(
    "name", ["f16", "q8_0", "turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq"]
)
def test_saved_state_continues_the_same_way(tiny: Model, tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.state"
    ids = tiny.tokenizer.encode(PROMPT)
    keywords = {"temperature": 0, "max_tokens": 32, "ignore_eos": True}
    with tiny.context(512, kv=name) as ctx:
        ctx.prefill(ids)
        state.save(ctx, path)
        expected, _ = complete(ctx, ids, **keywords)
    with tiny.context(512, kv=name) as ctx:
        assert state.load(ctx, path) == len(ids)
        text, last = complete(ctx, ids, **keywords)
        assert (text, last.n_reused) == (expected, len(ids) - 1)
    with tiny.context(512, kv="q4_0") as ctx, pytest.raises(errors.StateError, match="layers"):
        state.load(ctx, path)


def test_damaged_native_state_is_refused(tiny: Model) -> None:
    with tiny.context(256) as ctx:
        ctx.decode([5, 6, 7])
        data = state.get_bytes(ctx)
        for bad in (data[: len(data) // 2], bytes(len(data)), b""):
            with pytest.raises((errors.StateError, errors.OptionError)):
                state.set_bytes(ctx, bad)
        ctx.seqs.clear()
        ctx.decode([5])
    with tiny.context(256, kv="q8_0") as other, pytest.raises(errors.StateError):
        state.set_bytes(other, data)


def test_an_empty_sequence_can_be_saved(tiny: Model, tmp_path: Path) -> None:
    with tiny.context(256) as ctx:
        state.save(ctx, tmp_path / "empty")
        assert state.load(ctx, tmp_path / "empty") == 0


def test_embeddings(tiny: Model) -> None:
    with tiny.context(256, embeddings=True, pooling_type="mean") as ctx:
        ctx.decode(tiny.tokenizer.encode(PROMPT), outputs="all")
        vector = ctx.embedding(seq=0)
        assert vector.shape == (ctx.facts.n_embd_out,) and np.isfinite(vector).all() and vector.any()
    with tiny.context(256) as ctx, pytest.raises(errors.UnsupportedError, match="without embeddings"):
        ctx.embedding(seq=0)
