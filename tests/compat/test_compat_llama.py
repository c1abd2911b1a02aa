"""`Llama`: its constructor, tokens one at a time, states and caches, and what it refuses."""

from __future__ import annotations

import logging
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyllama_turbo.compat as llama_cpp
from pyllama_turbo import Llama, errors
from pyllama_turbo.compat import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaGrammar, LlamaRAMCache, LlamaState
from pyllama_turbo.compat.arguments import sort_arguments

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


def test_defaults() -> None:
    arguments = sort_arguments({})
    assert arguments.model == {"n_gpu_layers": 0, "split_mode": "layer", "tensor_split": ()}
    assert arguments.context == {
        "n_ctx": 512, "n_batch": 512, "n_threads": 0, "n_threads_batch": 0, "rope_scaling": "model",
        "pooling_type": "model", "embeddings": False, "flash_attn": "auto", "op_offload": True, "swa_full": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keywords", "model", "context"),
    [
        ({"n_gpu_layers": -1}, {"n_gpu_layers": "all"}, {}),
        ({"n_gpu_layers": "auto"}, {"n_gpu_layers": "auto"}, {}),
        ({"split_mode": llama_cpp.LLAMA_SPLIT_MODE_ROW, "main_gpu": 1}, {"split_mode": "row", "main_gpu": 1}, {}),
        ({"tensor_split": [0.5, 0.5]}, {"tensor_split": [0.5, 0.5]}, {}),
        ({"use_mlock": True}, {"load_mode": "mmap+mlock"}, {}),
        ({"use_mmap": False}, {"load_mode": "none"}, {}),
        ({"use_mmap": False, "use_mlock": True}, {"load_mode": "mlock"}, {}),
        ({"rope_scaling_type": 2}, {}, {"rope_scaling": "yarn"}),
        ({"pooling_type": llama_cpp.LLAMA_POOLING_TYPE_CLS, "embedding": True}, {}, {"pooling_type": "cls"}),
        ({"type_k": 8, "type_v": llama_cpp.GGML_TYPE_Q4_0}, {}, {"type_k": "q8_0", "type_v": "q4_0"}),
        ({"type_k": "turbo4_tcq", "type_v": "turbo3"}, {}, {"type_k": "turbo4_tcq", "type_v": "turbo3"}),
        ({"kv": ("q8_0", "turbo3"), "k_center": "off"}, {}, {"kv": ("q8_0", "turbo3"), "k_center": "off"}),
        ({"flash_attn": False, "n_threads": None, "swa_full": None}, {}, {"flash_attn": False, "n_threads": 0}),
        ({"lora_path": "a.gguf", "lora_scale": 0.5}, {"lora": (("a.gguf", 0.5),)}, {}),
        ({"n_ctx": "8k", "seed": -1, "numa": False, "draft_model": None, "kv_overrides": None}, {}, {"n_ctx": 8192}),
    ],
)
def test_keywords_reach_model_and_context(
    keywords: dict[str, Any], model: dict[str, Any], context: dict[str, Any]
) -> None:
    arguments = sort_arguments(keywords)
    assert model.items() <= arguments.model.items()
    assert context.items() <= arguments.context.items()


@pytest.mark.parametrize(
    ("keywords", "kind", "message"),
    [
        ({"n_gpu_layer": 1}, errors.UnknownOptionError, "did you mean n_gpu_layers"),
        ({"cache_type_k": "q8_0"}, errors.UnknownOptionError, "unknown keyword 'cache_type_k'"),
        ({"type_k": "turbo9"}, errors.OptionError, "unknown KV cache type 'turbo9'"),
        ({"type_k": 42}, errors.OptionError, "42 means nothing here"),
        ({"type_k": 42}, errors.OptionError, "compressed types go by name"),
        ({"type_k": True}, errors.OptionError, "True is neither a name nor"),
        ({"kv": "turbo3", "type_k": "f16"}, errors.OptionError, "kv stands for type_k and type_v"),
        ({"split_mode": 7}, errors.OptionError, "7 means nothing here"),
        ({"split_mode": "rows"}, errors.OptionError, "did you mean row"),
        ({"n_ctx": "much"}, errors.OptionError, "n_ctx"),
        ({"seed": "x"}, errors.OptionError, "seed"),
        ({"chat_format": "chatmll"}, errors.UnsupportedError, "did you mean chatml"),
        ({"chat_format": "chatml", "chat_template": "x"}, errors.OptionError, "two answers"),
        ({"draft_model": object()}, errors.UnsupportedError, "drafting in Python is not offered"),
        ({"chat_handler": object()}, errors.UnsupportedError, "chat_handler is not offered"),
        ({"tokenizer": object()}, errors.UnsupportedError, "tokenizer is not offered"),
        ({"numa": True}, errors.UnsupportedError, "numactl"),
        ({"kv_overrides": {"a": 1}}, errors.UnsupportedError, "cannot be overridden"),
        ({"attention_type": 1}, errors.UnsupportedError, "attention is causal"),
        ({"lora_base": "x"}, errors.UnsupportedError, "lora_base is not offered"),
        ({"n_gpu_layers": 4}, errors.UnsupportedError, "no GPU can be used"),
    ],
)
def test_bad_keywords(path: Path, keywords: dict[str, Any], kind: type[Exception], message: str) -> None:
    if "n_gpu_layers" in keywords:
        from pyllama_turbo.devices import gpus

        if gpus():
            pytest.skip("there is a GPU")
    with pytest.raises(kind, match=re.escape(message)):
        Llama(path, **keywords)


def test_files_that_cannot_be_loaded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"nonsense")
    for name in ("none.gguf", "bad.gguf", "."):
        with pytest.raises(errors.ModelLoadError):
            Llama(model_path=str(tmp_path / name))
    assert capfd.readouterr() == ("", "")


def test_compressed_cache(path: Path) -> None:
    with Llama(path, n_ctx=256, type_k="turbo4_tcq", type_v="turbo3_tcq") as llm:
        assert llm.kv.requested == ("turbo4_tcq", "turbo3_tcq")
        assert llm("hello", **GREEDY)["usage"]["completion_tokens"] == 8
    with Llama(path, n_ctx=256, kv="turbo3") as other:
        assert other.kv.bytes < llm_bytes(path)


def llm_bytes(path: Path) -> int:
    with Llama(path, n_ctx=256) as llm:
        return llm.kv.bytes


def test_facts(llm: Llama, path: Path) -> None:
    facts = llm.model.facts
    assert (llm.n_ctx(), llm.n_vocab(), llm.n_embd()) == (512, facts.n_vocab, facts.n_embd)
    assert (llm.token_bos(), llm.token_eos(), llm.pooling_type()) == (1, 2, 0)
    assert llm.token_nl() >= -1
    assert llm.metadata["general.architecture"] == "llama"
    assert (llm.chat_format, llm.model_path, llm.verbose) == ("chat_template.default", str(path), False)


def test_tokens_and_bytes(llm: Llama) -> None:
    tokens = llm.tokenize(b"hello there")
    assert tokens[0] == llm.token_bos()
    assert tokens == llm.tokenize("hello there")
    assert llm.tokenize(b"hello there", add_bos=False) == tokens[1:]
    assert llm.detokenize(tokens) == b"hello there"
    assert llm.detokenize(tokens[2:], prev_tokens=tokens[:2]) == b"hello there"[-len(llm.detokenize(tokens[2:])) :]
    assert llm.tokenize(b"</s>", add_bos=False, special=True) == [llm.token_eos()]
    assert len(llm.tokenize(b"</s>", add_bos=False)) > 1
    assert llm.detokenize([llm.token_eos()]) == b""
    assert llm.detokenize([llm.token_eos()], special=True) == b"</s>"
    tokenizer = llm.tokenizer()
    assert tokenizer.decode(tokenizer.encode("hello there")) == "hello there"
    with pytest.raises(errors.OptionError, match="str or bytes"):
        llm.tokenize(3)  # type: ignore[arg-type]


def test_evaluation_step_by_step_is_generation(llm: Llama) -> None:
    tokens = llm.tokenize("hello there")
    wanted = [token for token, _ in zip(llm.generate(tokens, temp=0.0), range(6))]
    llm.reset()
    found = []
    llm.eval(tokens)
    for _ in range(6):
        found.append(llm.sample(temp=0.0))
        llm.eval(found[-1:])
    assert found == wanted
    assert llm.n_tokens == len(tokens) + 6
    assert list(llm.eval_tokens) == llm.input_ids.tolist() == tokens + found
    assert np.asarray(llm.eval_logits).shape == (1, llm.n_vocab())
    with pytest.raises(errors.UnsupportedError, match="logits_all=True"):
        _ = llm.scores


def test_tokens_can_be_sent_into_a_generator(llm: Llama) -> None:
    steps = llm.generate(llm.tokenize("hello"), top_k=1)
    first = next(steps)
    steps.send([5, 6])
    assert list(llm.eval_tokens)[-3:] == [first, 5, 6]
    with pytest.raises(errors.BusyError):
        llm("hello")
    steps.close()
    assert llm("hello", **GREEDY)
    stop_at = len(llm.tokenize("hello")) + 3
    assert len(list(llm.generate(llm.tokenize("hello"), stopping_criteria=lambda ids, _: len(ids) >= stop_at))) == 3


def test_logits_of_every_token(path: Path) -> None:
    with Llama(path, n_ctx=256, logits_all=True) as llm:
        assert llm.scores.shape == (0, llm.n_vocab())
        tokens = llm.tokenize("hello there")
        llm.eval(tokens)
        assert llm.scores.shape == (len(tokens), llm.n_vocab())
        assert int(llm.scores[-1].argmax()) == llm.sample(temp=0.0)
        assert int(llm.scores[0].argmax()) == llm.sample(temp=0.0, idx=0)
        assert len(llm.eval_logits) == len(tokens)
        probabilities = np.exp(Llama.logits_to_logprobs(llm.scores)).sum(axis=-1)
        assert probabilities == pytest.approx(np.ones(len(tokens)), abs=1e-4)


def test_states(llm: Llama, path: Path) -> None:
    llm.eval(llm.tokenize("remember this"))
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert isinstance(state, LlamaState)
    assert (state.n_tokens, state.llama_state_size > 0) == (llm.n_tokens, True)
    after = llm("remember this", **GREEDY)["choices"][0]["text"]
    llm.reset()
    assert llm.n_tokens == 0
    llm.load_state(state)
    assert llm.n_tokens == state.n_tokens
    assert llm("remember this", **GREEDY)["choices"][0]["text"] == after
    with Llama(path, n_ctx=512, kv="turbo3") as other, pytest.raises(errors.StateError, match="turbo3"):
        other.load_state(state)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_caches(llm: Llama, tmp_path: Path, kind: str) -> None:
    cache: BaseLlamaCache = LlamaRAMCache() if kind == "ram" else LlamaDiskCache(tmp_path / "states")
    assert LlamaCache is LlamaRAMCache
    llm.set_cache(cache)
    first = llm("a story about a dog and a cat", **GREEDY)
    size = cache.cache_size
    assert size > 0
    llm("quite another beginning", **GREEDY)
    before = llm.ctx.perf().n_prompt
    again = llm("a story about a dog and a cat", **GREEDY)
    assert again["choices"] == first["choices"]
    assert llm.ctx.perf().n_prompt - before < 5
    assert [1, 2, 3] in cache  # BOS is shared
    with pytest.raises(KeyError):
        cache[[300]]
    cache.capacity_bytes = size
    llm("a third one", **GREEDY)
    assert cache.cache_size <= 2 * size
    cache.capacity_bytes = 0
    llm("a fourth", **GREEDY)
    assert cache.cache_size == 0


def test_damaged_file_of_a_cache(llm: Llama, tmp_path: Path) -> None:
    cache = LlamaDiskCache(tmp_path)
    llm.set_cache(cache)
    llm("hello there", **GREEDY)
    (file,) = tmp_path.glob("*.state")
    (tmp_path / "other.state").write_bytes(b"no state at all")
    data = file.read_bytes()
    file.write_bytes(data[:-4] + b"xxxx")
    llm.reset()
    with pytest.raises(errors.StateError):
        llm("hello there", **GREEDY)
    file.unlink()
    assert llm("hello there", **GREEDY)


def test_an_object_is_pickled_by_its_arguments(path: Path) -> None:
    with Llama(path, n_ctx=256, type_k="q8_0") as llm, pickle.loads(pickle.dumps(llm)) as copy:
        assert copy.kv.requested == ("q8_0", "f16")
        assert copy("hello", **GREEDY)["choices"] == llm("hello", **GREEDY)["choices"]


def test_vocabulary_only(path: Path) -> None:
    with Llama(path, vocab_only=True) as llm:
        assert llm.tokenize(b"hello")
        with pytest.raises(errors.UnsupportedError, match="needs the model's weights"):
            llm("hello")


def test_closing(path: Path) -> None:
    llm = Llama(path, n_ctx=256)
    llm.close()
    llm.close()
    with pytest.raises(errors.ClosedError):
        llm("hello")


def test_verbose_shows_native_lines(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("pyllama_turbo")
    before, level = list(logger.handlers), logger.level
    try:
        Llama(path, n_ctx=256, verbose=True).close()
        assert "llama_model_loader" in capfd.readouterr().err
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)


def test_progress(path: Path) -> None:
    seen: list[float] = []
    with Llama(path, n_ctx=256, progress=seen.append):
        assert seen == sorted(seen)
        assert seen[-1] == 1.0


def test_grammar_objects(tmp_path: Path) -> None:
    file = tmp_path / "a.gbnf"
    file.write_text('root ::= "x"')
    assert LlamaGrammar.from_file(file).gbnf == 'root ::= "x"'
    for empty in ("", " \n"):
        with pytest.raises(errors.OptionError, match="empty"):
            LlamaGrammar.from_string(empty)
    with pytest.raises(errors.OptionError):
        LlamaGrammar.from_json_schema("{")


@pytest.mark.parametrize("name", ["llama_decode", "ggml_init", "Llava15ChatHandler", "LlamaPromptLookupDecoding"])
def test_names_that_are_not_offered(name: str) -> None:
    with pytest.raises(errors.UnsupportedError, match=f"{name} is not offered: "):
        getattr(llama_cpp, name)


def test_attributes_that_are_not_offered(llm: Llama) -> None:
    for name in ("_ctx", "_model", "context_params", "chat_handler", "draft_model"):
        with pytest.raises(errors.UnsupportedError, match=f"Llama.{name} is not offered"):
            getattr(llm, name)
    assert not hasattr(llm, "nothing")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = llama_cpp.nothing


def test_from_pretrained_says_what_to_do() -> None:
    with pytest.raises(errors.UnsupportedError, match="download the file with your hub's own client"):
        Llama.from_pretrained(repo_id="someone/model-GGUF", filename="*q4_0.gguf", verbose=False)


def test_objects_of_a_package_that_is_not_there(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)  # importing it fails, installed or not
    with pytest.raises(errors.UnsupportedError, match="pip install openai"):
        llm.create_chat_completion_openai_v1(messages=[{"role": "user", "content": "x"}])


def test_embeddings_are_refused_without_the_keyword(llm: Llama) -> None:
    for call in (llm.embed, llm.create_embedding):
        with pytest.raises(errors.UnsupportedError, match="embedding=True"):
            call("hello")


def test_embeddings(path: Path, tiny_model: Callable[..., Path]) -> None:
    with Llama(path, n_ctx=256, embedding=True, pooling_type="mean") as llm:
        both = llm.embed(["one text", "another"], normalize=True)
        assert np.linalg.norm(both, axis=1) == pytest.approx([1, 1], abs=1e-5)
        assert llm.embed("one text", normalize=True) == pytest.approx(both[0], abs=1e-5)
        _, n_tokens = llm.embed("one text", return_count=True)
        response = llm.create_embedding("one text", model="mine")
        assert response["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        assert (response["object"], response["model"]) == ("list", "mine")
        assert list(response["data"][0]) == ["object", "embedding", "index"]
    with Llama(path, n_ctx=256, embedding=True, pooling_type=0) as llm:
        rows = llm.embed("one text")
        assert np.asarray(rows).shape == (len(llm.tokenize("one text")), llm.n_embd())


def test_adapters(path: Path, tmp_path: Path) -> None:
    from make_lora import write_lora

    adapter = write_lora(tmp_path / "a.gguf", {"output.weight": (128, 512)}, seed=1)
    texts = []
    for keywords in ({}, {"lora_path": str(adapter), "lora_scale": 0.0}, {"lora_path": adapter, "lora_scale": 4.0}):
        with Llama(path, n_ctx=256, **keywords) as llm:
            texts.append(llm("hello", **GREEDY)["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(errors.TurboError, match="none.gguf"):
        Llama(path, lora_path=str(tmp_path / "none.gguf"))
