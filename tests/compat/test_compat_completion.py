"""`create_completion`: its dicts to the key, and every argument that changes them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from pyllama_turbo import Llama, errors
from pyllama_turbo.compat import LlamaGrammar, LogitsProcessorList, MinTokensLogitsProcessor

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
LETTERS: dict[str, Any] = {**GREEDY, "grammar": "root ::= [a-z]+"}  # a random model writes stray bytes otherwise


def text_of(response: dict[str, Any]) -> str:
    return str(response["choices"][0]["text"])


def test_the_response(llm: Llama, path: Any) -> None:
    response = llm("hello there", **GREEDY)
    assert list(response) == ["id", "object", "created", "model", "choices", "usage"]
    assert re.fullmatch(r"cmpl-[0-9a-f-]{36}", response["id"])
    assert (response["object"], response["model"]) == ("text_completion", str(path))
    assert isinstance(response["created"], int)
    (choice,) = response["choices"]
    assert list(choice) == ["text", "index", "logprobs", "finish_reason"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    n_prompt = len(llm.tokenize("hello there"))
    assert response["usage"] == {
        "prompt_tokens": n_prompt, "completion_tokens": 12, "total_tokens": n_prompt + 12,
    }  # fmt: skip
    assert llm("hello there", model="mine", **GREEDY)["model"] == "mine"


def test_chunks_say_the_same(llm: Llama) -> None:
    whole = text_of(llm("hello there", **GREEDY))
    chunks = list(llm("hello there", stream=True, **GREEDY))
    assert "".join(text_of(chunk) for chunk in chunks) == whole
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(list(chunk) == ["id", "object", "created", "model", "choices"] for chunk in chunks)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert text_of(chunks[-1]) == ""
    echoed = list(llm("hello there", stream=True, echo=True, **GREEDY))
    assert text_of(echoed[0]) == "hello there"


def test_defaults_are_llama_cpp_pythons() -> None:
    shown = inspect.signature(Llama.create_completion).parameters
    defaults = {name: p.default for name, p in shown.items() if p.default is not p.empty}
    assert defaults == {
        "suffix": None, "max_tokens": 16, "temperature": 0.8, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0,
        "logprobs": None, "echo": False, "stop": (), "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "repeat_penalty": 1.0, "top_k": 40, "stream": False, "seed": None, "tfs_z": 1, "mirostat_mode": 0,
        "mirostat_tau": 5.0, "mirostat_eta": 0.1, "model": None, "stopping_criteria": (), "logits_processor": (),
        "grammar": None, "logit_bias": (),
    }  # fmt: skip
    chat = inspect.signature(Llama.create_chat_completion).parameters
    assert (chat["temperature"].default, chat["max_tokens"].default) == (0.2, None)


def test_stop_texts_are_never_shown(llm: Llama) -> None:
    whole = text_of(llm("hello there", **GREEDY))
    middle = whole[4:9]
    for stop in (middle, [middle, "never"], ("never", middle)):
        response = llm("hello there", stop=stop, **GREEDY)
        assert text_of(response) == whole[: whole.index(middle)]
        assert response["choices"][0]["finish_reason"] == "stop"
    shown = "".join(text_of(c) for c in llm("hello there", stop=middle, stream=True, **GREEDY))
    assert shown == whole[: whole.index(middle)]
    assert text_of(llm("hello there", stop=[""], **GREEDY)) == whole
    assert text_of(llm("hello there", stop=None, **GREEDY)) == whole


def test_length_is_what_fits(llm: Llama) -> None:
    for unlimited in (None, -1, 0):
        response = llm("hello", temperature=0, max_tokens=unlimited, logit_bias={llm.token_eos(): -1000.0})
        assert response["usage"]["total_tokens"] == llm.n_ctx()
        assert response["choices"][0]["finish_reason"] == "length"
    with pytest.raises(errors.ContextFullError, match=rf"has \d+ tokens, the context holds {llm.n_ctx()}") as caught:
        llm("a b c d " * 400)
    assert caught.value.limit == llm.n_ctx()
    assert isinstance(caught.value, ValueError)  # what llama-cpp-python raises


def test_seeds(path: Any, llm: Llama) -> None:
    def draw(model: Llama, **keywords: Any) -> str:
        return text_of(model("hello", temperature=2.0, max_tokens=12, **keywords))

    assert draw(llm, seed=3) == draw(llm, seed=3) != draw(llm, seed=4)
    llm.set_seed(11)
    first = [draw(llm), draw(llm)]
    assert first[0] != first[1]
    llm.set_seed(11)
    assert [draw(llm), draw(llm)] == first
    llm.set_seed(-1)
    assert draw(llm) != draw(llm)


def test_prompts_of_tokens_and_none(llm: Llama) -> None:
    tokens = llm.tokenize("hello there")
    assert text_of(llm(tokens, **GREEDY)) == text_of(llm("hello there", **GREEDY))
    assert text_of(llm(tokens, echo=True, **GREEDY)).startswith("hello there")
    assert not text_of(llm("", **GREEDY)).startswith(" ")
    assert llm("", **GREEDY)["usage"]["prompt_tokens"] == 1


def test_log_probabilities(llm: Llama) -> None:
    prompt = "hello there"
    response = llm(prompt, logprobs=2, **LETTERS)
    logprobs = response["choices"][0]["logprobs"]
    assert list(logprobs) == ["tokens", "text_offset", "token_logprobs", "top_logprobs"]
    assert "".join(logprobs["tokens"]) == text_of(response)
    assert logprobs["text_offset"][:2] == [len(prompt), len(prompt) + len(logprobs["tokens"][0])]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert top[token] == value <= max(top.values()) <= 0
    # the first one against the logits themselves
    llm.reset()
    llm.eval(llm.tokenize(prompt))
    reference = Llama.logits_to_logprobs(llm.ctx.logits[-1])
    assert max(logprobs["top_logprobs"][0].values()) == pytest.approx(float(reference.max()), abs=1e-4)
    llm.reset()  # what is there of the prompt would not be computed again: other sums, on some processors
    streamed = list(llm(prompt, logprobs=2, stream=True, **LETTERS))[:-1]
    assert [c["choices"][0]["logprobs"]["token_logprobs"][0] for c in streamed] == pytest.approx(
        logprobs["token_logprobs"], abs=1e-4
    )


def test_log_probabilities_of_the_prompt(llm: Llama) -> None:
    response = llm("hello there", logprobs=1, echo=True, **LETTERS)
    logprobs = response["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]).strip() == text_of(response).strip()
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert all(value is not None for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == len(llm.tokenize("hello there")) - 1 + 12


def test_log_probabilities_end_where_the_text_ends(llm: Llama) -> None:
    whole = llm("hello there", logprobs=1, **LETTERS)
    stop = next(token for token in whole["choices"][0]["logprobs"]["tokens"][3:] if token)
    response = llm("hello there", logprobs=1, stop=stop, **LETTERS)
    tokens = response["choices"][0]["logprobs"]["tokens"]
    assert "".join(tokens) == text_of(response)
    assert 0 < len(tokens) < 12


def test_bias_grammar_and_processors(llm: Llama) -> None:
    (token,) = llm.tokenize("z", add_bos=False)[-1:]
    assert set(text_of(llm("hello", logit_bias={token: 1000.0}, **GREEDY))) <= {"z", " "}
    assert set(text_of(llm("hello", logit_bias={str(token): 1000.0}, **GREEDY))) <= {"z", " "}
    grammar = LlamaGrammar.from_json_schema({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]})
    response = llm("hello", grammar=grammar, temperature=0, max_tokens=60)
    assert re.sub(r"\s", "", text_of(response)) == '{"n":7}'
    assert response["choices"][0]["finish_reason"] == "stop"
    assert text_of(llm("hello", grammar='root ::= "yes"', temperature=0)) == "yes"
    eos = MinTokensLogitsProcessor(5, llm.token_eos())
    always_end = {llm.token_eos(): 1000.0}
    assert llm("hello", logit_bias=always_end, **GREEDY)["usage"]["completion_tokens"] == 0
    assert llm("hello", logits_processor=eos, **GREEDY)["usage"]["completion_tokens"] == 12

    def wrong(input_ids: Any, scores: Any) -> Any:
        return np.zeros(3, dtype=np.single)

    with pytest.raises(errors.OptionError, match=r"gave \(3,\)"):
        llm("hello", logits_processor=LogitsProcessorList([wrong]))


def test_a_stopping_criterion_keeps_text_that_was_held_back(llm: Llama) -> None:
    whole = text_of(llm("hello there", **GREEDY))
    n_prompt = len(llm.tokenize("hello there"))
    response = llm(
        "hello there", stop=[whole + "never"], stopping_criteria=lambda ids, _: len(ids) >= n_prompt + 6, **GREEDY
    )
    assert response["usage"]["completion_tokens"] == 6
    assert whole.startswith(text_of(response)) and text_of(response)


def test_filling_in(llm: Llama, tiny_model: Any) -> None:
    response = llm("def f(a):\n    return ", suffix="\n\nf(1)", **GREEDY)
    n_before, n_after = (len(llm.tokenize(t, add_bos=False)) for t in ("def f(a):\n    return ", "\n\nf(1)"))
    assert response["usage"]["prompt_tokens"] == 1 + 3 + n_before + n_after
    with Llama(tiny_model(), n_ctx=256) as plain, pytest.raises(errors.UnsupportedError, match="cannot fill in a gap"):
        plain("a", suffix="b")


def test_a_stream_that_is_dropped_frees_the_object(llm: Llama) -> None:
    stream = llm("hello", stream=True, max_tokens=50)
    next(stream)
    with pytest.raises(errors.BusyError):
        llm("hello")
    stream.close()
    assert text_of(llm("hello", **GREEDY))


def test_the_start_of_a_prompt_is_not_computed_twice(llm: Llama) -> None:
    llm("a long beginning that stays the same, one", **GREEDY)
    before = llm.ctx.perf().n_prompt
    llm("a long beginning that stays the same, two", **GREEDY)
    assert llm.ctx.perf().n_prompt - before < 10


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_token": 3}, "did you mean max_tokens"),
        ({"temprature": 1}, "did you mean temperature"),
        ({"top_p": 2}, "allowed: 0 to 1"),
        ({"max_tokens": "many"}, "max_tokens is 'many'"),
        ({"logprobs": True}, "logprobs is True"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": 3}, "neither a LlamaGrammar nor a GBNF text"),
        ({"logit_bias": [1, 2]}, "no dict of token id"),
        ({"logit_bias": {99999: 1.0}}, "99999"),
        ({"stop": [3]}, "3 is not a text"),
        ({"logits_processor": 3}, "logits_processor"),
        ({"prompt": "twice"}, "prompt is given twice"),
    ],
)
def test_bad_arguments(llm: Llama, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.OptionError, match=re.escape(message)):
        llm("hello", **keywords)


def test_missing_prompt_and_what_is_not_offered(llm: Llama) -> None:
    with pytest.raises(errors.OptionError, match="prompt is missing"):
        llm()
    with pytest.raises(errors.UnsupportedError, match="tail-free sampling"):
        llm("x", tfs_z=0.5)
    assert text_of(llm("x", tfs_z=1.0, max_tokens=1))
