"""LoRA adapters: their effect, their sum, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native_helpers import PROMPT

from pyllama_turbo import Model, errors, state

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from make_lora import write_lora

N_EMBD, N_VOCAB = 128, 512
OUTPUT = {"output.weight": (N_EMBD, N_VOCAB)}  # logits are linear in it
QKV = {f"blk.{i}.attn_{x}.weight": (N_EMBD, n) for i in range(2) for x, n in (("q", 256), ("k", 128), ("v", 128))}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("lora")
    return write_lora(folder / "a.gguf", OUTPUT, seed=1), write_lora(folder / "b.gguf", OUTPUT, seed=2, rank=3)


@pytest.fixture(scope="module")
def path(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model(weight_type="f32")


def logits(model: Model, **keywords: object) -> np.ndarray:  # type: ignore[type-arg]
    with model.context(256, **keywords) as ctx:
        ctx.prefill(model.tokenizer.encode(PROMPT))
        return ctx.logits[0].astype(np.float64)


def test_adapters_add_up_and_scale(path: Path, adapters: tuple[Path, Path]) -> None:
    with Model.open(path) as model:
        base = logits(model)
    with Model.open(path, lora=list(adapters)) as model:
        assert [(x.path, x.scale, x.alpha) for x in model.lora] == [(p, 1.0, 4.0) for p in adapters]
        both, first, second = logits(model), *(logits(model, lora_scales=s) for s in ([1, 0], [0, 1]))
        assert np.array_equal(logits(model, lora_scales=[0, 0]), base)
        assert np.abs(first - base).max() > 1.0 and np.abs(second - base).max() > 1.0
        assert np.abs((both - base) - (first - base) - (second - base)).max() < 1e-3
        half = logits(model, lora_scales=[-0.5, 0])
        assert np.abs((half - base) + 0.5 * (first - base)).max() < 1e-3


def test_scales_from_the_file_s_name_a_pair_and_a_mapping(path: Path, adapters: tuple[Path, Path]) -> None:
    a, b = adapters
    for chosen, scales in (
        (str(a), (1.0,)), (a, (1.0,)), (f"{a}:0.25", (0.25,)), ([f"{a}:2", b], (2.0, 1.0)),
        ([(a, 0), (b, -1)], (0.0, -1.0)),
        ({str(a): 0.5, str(b): 3}, (0.5, 3.0)), ((), ()),
    ):  # fmt: skip
        with Model.open(path, lora=chosen) as model, model.context(256) as ctx:
            assert tuple(x.scale for x in model.lora) == ctx.lora_scales == scales


def test_changing_scales_does_not_reuse_the_old_cache(path: Path, tmp_path: Path) -> None:
    adapter = write_lora(tmp_path / "qkv.gguf", QKV, gain=2.0)
    greedy = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    with Model.open(path, lora=adapter) as model, model.context(256) as ctx:
        texts = [ctx.complete(PROMPT, **greedy)]
        ctx.set_lora([0])
        run = ctx.generate(PROMPT, **greedy)
        texts.append("".join(e.text for e in run))
        assert run.last is not None and run.last.n_reused == 0
        ctx.set_lora([1])
        assert ctx.complete(PROMPT, **greedy) == texts[0] != texts[1]
        ctx.set_lora([1])  # no change: the cache is still good
        assert ctx.prefill(model.tokenizer.encode(PROMPT)).n_reused > 0
        with model.context(256, lora_scales=[0]) as plain:  # contexts of one model differ
            assert plain.complete(PROMPT, **greedy) == texts[1]


def test_saved_state_belongs_to_the_adapters(path: Path, adapters: tuple[Path, Path], tmp_path: Path) -> None:
    with Model.open(path, lora=adapters[0]) as model, model.context(256) as ctx:
        ctx.prefill(model.tokenizer.encode(PROMPT))
        data = state.get_bytes(ctx)
        state.set_bytes(ctx, data)
        ctx.set_lora([0.5])
        with pytest.raises(errors.StateError, match="lora"):
            state.set_bytes(ctx, data)
    with Model.open(path) as model, model.context(256) as ctx, pytest.raises(errors.StateError, match="lora"):
        state.set_bytes(ctx, data)


def test_repacked_weights_take_adapters_too(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    adapter = write_lora(tmp_path / "qkv.gguf", QKV)
    for repack in (True, False):
        with Model.open(tiny_model(), lora=adapter, use_extra_bufts=repack) as model:
            assert np.isfinite(logits(model)).all()


def test_what_is_refused(path: Path, adapters: tuple[Path, Path], tmp_path: Path) -> None:
    write = write_lora
    bad = {
        "LoRA adapter .*does not exist": tmp_path / "missing.gguf",
        "LoRA adapter .*": tmp_path / "text.gguf",
        "arch mismatch": write(tmp_path / "arch.gguf", OUTPUT, arch="qwen2"),
        "general.type": write(tmp_path / "type.gguf", OUTPUT, general_type="model"),
        "incorrect shape": write(tmp_path / "shape.gguf", {"output.weight": (64, N_VOCAB)}),
        "does not exist in base model": write(tmp_path / "name.gguf", {"blk.9.attn_q.weight": (N_EMBD, 256)}),
        "no LoRA adapter": path,
    }
    bad["LoRA adapter .*"].write_bytes(b"not a GGUF file at all")
    whole = adapters[0].read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    for reason, file in {**bad, "cut.gguf": tmp_path / "cut.gguf"}.items():
        with pytest.raises(errors.ModelLoadError, match=reason) as caught:
            Model.open(path, lora=file)
        assert file.name in str(caught.value) or caught.value.asked == str(file)
    for scale in (float("nan"), float("inf"), "x"):
        with pytest.raises(errors.OptionError, match="lora"):
            Model.open(path, lora=[(adapters[0], scale)])
    with Model.open(path, lora=adapters[0]) as model:
        with pytest.raises(errors.OptionError, match="2 LoRA scales for 1"):
            model.context(256, lora_scales=[1, 2])
        with model.context(256) as ctx:
            for scales in ([], [float("nan")], [1, 2]):
                with pytest.raises(errors.OptionError):
                    ctx.set_lora(scales)
            assert ctx.lora_scales == (1.0,)
    with Model.open(path) as model, pytest.raises(errors.OptionError, match="1 LoRA scales for 0"):
        model.context(256, lora_scales=[1])
