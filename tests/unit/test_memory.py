"""Shapes and memory of generated models against numbers worked out by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pyllama_turbo.errors import GGUFError
from pyllama_turbo.memory import (
    MAX_N_CTX,
    KVPlan,
    estimate,
    fit_n_ctx,
    free_host_bytes,
    kv_bytes,
    layer_cells,
    row_bytes,
)
from pyllama_turbo.shape import LayerKV, ModelShape, model_shape

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from gguf_writer import GGUFWriter
from make_model import write_model


@dataclass(frozen=True)
class Format:
    name: str
    block_values: int
    block_bytes: int


F16 = Format("f16", 1, 2)
Q8_0 = Format("q8_0", 32, 34)
TURBO3 = Format("turbo3", 128, 50)
TURBO3_64 = Format("turbo3_64", 64, 26)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., ModelShape]:
    return lambda **case: model_shape(write_model(tmp_path / "m.gguf", **case))


def header_only(path: Path, arch: str, values: dict[str, object], tensors: list[str]) -> ModelShape:
    """Shape of a file with this metadata and these (tiny) tensors."""
    import numpy as np

    writer = GGUFWriter(path, arch)
    for key, value in values.items():
        writer.set(key, value)  # type: ignore[arg-type]
    for name in tensors:
        writer.add(name, np.zeros(1, np.float32))
    return model_shape(writer.write())


BASE = {".block_count": 4, ".embedding_length": 512, ".attention.head_count": 8, ".attention.head_count_kv": 2}
ATTENTION = [f"blk.{i}.attn_k.weight" for i in range(4)]


def test_dense(tiny: Callable[..., ModelShape]) -> None:
    shape = tiny(n_layer=3, n_head=8, n_head_kv=2, head_dim=128)
    assert [(x.index, x.n_head_kv, x.head_dim_k, x.head_dim_v, x.window) for x in shape.layers] == [
        (i, 2, 128, 128, 0) for i in range(3)
    ]
    assert (shape.gqa, shape.head_dims, shape.n_vocab, shape.n_ctx_train) == (4, (128,), 512, 4096)
    assert kv_bytes(shape, KVPlan(F16, F16), 1000).total == 3 * 2 * 2 * 128 * 2 * 1024  # 1000 cells become 1024
    assert kv_bytes(shape, KVPlan(TURBO3, TURBO3), 1024).total == 3 * 2 * 2 * 50 * 1024
    assert kv_bytes(shape, KVPlan(Q8_0, TURBO3), 1024).per_token == 3 * 2 * (4 * 34 + 50)


def test_head_dim_64_uses_the_small_block(tiny: Callable[..., ModelShape]) -> None:
    shape = tiny(head_dim=64, n_head=2, n_head_kv=1)
    assert kv_bytes(shape, KVPlan(TURBO3_64, TURBO3_64), 256).total == 2 * 2 * 26 * 256
    with pytest.raises(ValueError, match="64 values do not fill whole turbo3 blocks of 128"):
        kv_bytes(shape, KVPlan(TURBO3, TURBO3), 256)


def test_layers_that_keep_another_key_format(tiny: Callable[..., ModelShape]) -> None:
    shape = tiny(head_dim=128, n_head_kv=2)
    plan = KVPlan(TURBO3, TURBO3, k_overrides={0: Q8_0})
    assert kv_bytes(shape, plan, 256).total == 256 * 2 * ((4 * 34 + 50) + (50 + 50))


def test_sliding_window(tiny: Callable[..., ModelShape]) -> None:
    shape = tiny(arch="gemma3", n_layer=7, n_swa=64)
    assert [x.window for x in shape.layers] == [64, 64, 64, 64, 64, 0, 64]
    per_layer = 2 * 2 * 64 * 2
    size = kv_bytes(shape, KVPlan(F16, F16), 8192)
    # 64 + 512 = 576 tokens round up to 768 cells; the one global layer has them all.
    assert (size.per_token, size.fixed, size.total) == (per_layer, 6 * 768 * per_layer, per_layer * (6 * 768 + 8192))
    assert kv_bytes(shape, KVPlan(F16, F16, swa_full=True), 8192).total == 7 * 8192 * per_layer
    assert kv_bytes(shape, KVPlan(F16, F16), 256).total == 7 * 256 * per_layer  # never more than the context


def test_sequences_have_their_own_cells() -> None:
    layer = LayerKV(0, 1, 64, 64, 0)
    assert layer_cells(layer, KVPlan(F16, F16, n_seq=4), 4096) == 4096
    assert layer_cells(layer, KVPlan(F16, F16, n_seq=3), 1000) == 3 * 512
    assert layer_cells(replace(layer, window=100), KVPlan(F16, F16, n_seq=2, n_ubatch=128), 8192) == 2 * 256


def test_window_pattern_from_the_file(tmp_path: Path) -> None:
    values = BASE | {".attention.sliding_window": 128, ".attention.sliding_window_pattern": [True, False, True, False]}
    values |= {".attention.key_length": 512, ".attention.value_length": 512}
    values |= {".attention.key_length_swa": 256, ".attention.value_length_swa": 256, ".attention.shared_kv_layers": 1}
    shape = header_only(tmp_path / "m.gguf", "gemma4", values, ATTENTION)
    assert [(x.head_dim_k, x.window) for x in shape.layers] == [(256, 128), (512, 0), (256, 128)]
    assert shape.n_shared == 1
    assert shape.head_dims == (256, 512)


@pytest.mark.parametrize(
    ("arch", "windows"),
    [
        ("gpt-oss", [128, 0, 128, 0]),
        ("cohere2moe", [0, 128, 128, 128]),
        ("llama", [0, 0, 0, 0]),  # names a window that its architecture does not use
        ("phi3", [0, 0, 0, 0]),
    ],
)
def test_window_pattern_of_the_architecture(tmp_path: Path, arch: str, windows: list[int]) -> None:
    shape = header_only(tmp_path / "m.gguf", arch, BASE | {".attention.sliding_window": 128}, ATTENTION)
    assert [x.window for x in shape.layers] == windows


def test_hybrid(tmp_path: Path) -> None:
    ssm = {".ssm.inner_size": 256, ".ssm.state_size": 16, ".ssm.group_count": 2, ".ssm.conv_kernel": 4}
    tensors = [f"blk.{i}.{part}.weight" for i in range(3) for part in ("ssm_out", "attn_qkv")] + ["blk.3.attn_k.weight"]
    shape = header_only(tmp_path / "m.gguf", "qwen3next", BASE | ssm, tensors)
    assert [x.index for x in shape.layers] == [3]
    assert shape.n_recurrent == 3
    assert shape.recurrent_bytes == 3 * 4 * (3 * (256 + 2 * 2 * 16) + 16 * 256)
    assert estimate(shape, KVPlan(F16, F16, n_seq=2), 256).recurrent == 2 * shape.recurrent_bytes


def test_latent_attention_has_no_values(tmp_path: Path) -> None:
    mla = {".attention.key_length": 576, ".attention.value_length": 512, ".attention.key_length_mla": 192}
    values = BASE | mla | {".attention.head_count_kv": 1}
    shape = header_only(tmp_path / "m.gguf", "deepseek2", values, [f"blk.{i}.attn_kv_a_mqa.weight" for i in range(4)])
    assert shape.mla
    assert kv_bytes(shape, KVPlan(F16, F16), 256).per_token == 4 * 576 * 2


def test_prediction_layers_are_not_counted(tmp_path: Path) -> None:
    shape = header_only(tmp_path / "m.gguf", "glm4moe", BASE | {".nextn_predict_layers": 1}, ATTENTION)
    assert (shape.n_layer, len(shape.layers)) == (3, 3)


@pytest.mark.parametrize("key", [".block_count", ".embedding_length"])
@pytest.mark.parametrize("value", [None, 0, 1 << 31, "many"])
def test_what_every_language_model_has(tmp_path: Path, key: str, value: object) -> None:
    values = {k: v for k, v in BASE.items() if k != key} | ({key: value} if value is not None else {})
    with pytest.raises(GGUFError, match=f"no usable llama{key}"):
        header_only(tmp_path / "m.gguf", "llama", values, ATTENTION)


def test_short_per_layer_array(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="2 entries for 4 layers"):
        header_only(tmp_path / "m.gguf", "llama", BASE | {".attention.head_count_kv": [1, 1]}, ATTENTION)


def test_fit_is_the_largest_that_fits(tiny: Callable[..., ModelShape]) -> None:
    shape = tiny(head_dim=128)
    plan = KVPlan(F16, F16)
    budget = estimate(shape, plan, 10_000).total
    n_ctx = fit_n_ctx(shape, plan, budget)
    assert n_ctx == 10_240
    assert estimate(shape, plan, n_ctx).total <= budget < estimate(shape, plan, n_ctx + 1).total
    assert fit_n_ctx(shape, KVPlan(TURBO3, TURBO3), budget) > 1.5 * n_ctx
    assert fit_n_ctx(shape, plan, shape.weights_bytes) == 0
    assert fit_n_ctx(replace(shape, layers=()), plan, 1 << 40) == MAX_N_CTX


def test_row_bytes() -> None:
    assert row_bytes(Q8_0, 64) == 68
    assert row_bytes(F16, 3) == 6


def test_free_host_bytes(tmp_path: Path) -> None:
    assert free_host_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    assert free_host_bytes(tmp_path) == 51_200
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert free_host_bytes(tmp_path) == 51_200
    (group / "memory.max").write_text("21000\n")
    assert free_host_bytes(tmp_path) == 20_000
    assert (free_host_bytes() or 0) > 1 << 20
