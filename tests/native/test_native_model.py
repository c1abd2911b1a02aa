"""Loading: facts, progress, cancel, refusals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllama_turbo import Model, build_info, devices, errors


def test_facts_are_those_of_the_file(tiny: Model) -> None:
    facts = tiny.facts
    assert (facts.arch, facts.n_layer, facts.n_head, facts.n_head_kv) == ("llama", 2, 4, 2)
    layer = tiny.layer(1)
    assert (layer.has_kv, layer.head_dim_k, layer.head_dim_v, layer.is_swa) == (True, 64, 64, False)
    assert tiny.metadata["general.architecture"] == "llama"
    assert len(tiny.layers) == 2


def test_sliding_windows_are_seen(open_model: Callable[..., Model]) -> None:
    model = open_model(arch="gemma3", n_layer=6, head_dim=128)
    assert [layer.is_swa for layer in model.layers] == [True] * 5 + [False]
    assert model.facts.n_swa == 64


def test_mixture_of_experts(open_model: Callable[..., Model]) -> None:
    assert open_model(arch="qwen3moe", n_expert=4).facts.n_expert == 4


def test_progress_rises_from_zero_to_one(tiny_model: Callable[..., Path]) -> None:
    seen: list[float] = []
    with Model.open(tiny_model(), progress=lambda p: seen.append(p)):  # type: ignore[func-returns-value]
        pass
    assert seen == sorted(seen)
    assert seen[0] >= 0.0 and seen[-1] == 1.0


def test_progress_can_cancel(tiny_model: Callable[..., Path]) -> None:
    with pytest.raises(errors.AbortedError, match="cancelled"):
        Model.open(tiny_model(), progress=lambda p: False)


def test_an_exception_in_progress_comes_out_as_it_is(tiny_model: Callable[..., Path]) -> None:
    def bad(progress: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model.open(tiny_model(), progress=bad)
    with Model.open(tiny_model()):
        pass


def test_vocab_only_refuses_contexts(tiny_model: Callable[..., Path]) -> None:
    with Model.open(tiny_model(), vocab_only=True) as model:
        assert model.tokenizer.encode("the")
        with pytest.raises(errors.UnsupportedError, match="vocab_only"):
            model.context(256)


def test_a_layer_that_does_not_exist(tiny: Model) -> None:
    with pytest.raises(errors.OptionError, match="layer 9"):
        tiny.layer(9)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ModelLoadError, match=r"nothing\.gguf"):
        Model.open(tmp_path / "nothing.gguf")


def test_an_unknown_architecture_gives_the_native_reason(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    data = tiny_model().read_bytes().replace(b"llama", b"lxama")
    (tmp_path / "odd.gguf").write_bytes(data)
    with pytest.raises(errors.ModelLoadError, match="lxama"):
        Model.open(tmp_path / "odd.gguf")


def test_gpu_layers_need_a_gpu(tiny_model: Callable[..., Path]) -> None:
    if devices.gpus():
        pytest.skip("this machine has a GPU")
    with pytest.raises(errors.UnsupportedError, match="no GPU"):
        Model.open(tiny_model(), n_gpu_layers=4)


def test_build_info_names_the_build() -> None:
    info = build_info()
    assert info["kv_format"] == 1 and len(info["digest"]) == 16 and info["backend"] in ("cpu", "cuda")
    assert {"turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq"} <= set(info["kv_types"])


def test_two_models_load_in_two_threads(tiny_model: Callable[..., Path]) -> None:
    paths = [tiny_model(seed=1), tiny_model(seed=2)]
    done: list[str] = []

    def load(path: Path) -> None:
        with Model.open(path) as model:
            done.append(model.facts.arch)

    threads = [threading.Thread(target=load, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    deadline = time.time() + 60
    for thread in threads:
        thread.join(deadline - time.time())
    assert done == ["llama", "llama"]
