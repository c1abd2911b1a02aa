"""KV types in a real cache: resolved block sizes, bytes read back, refusals, encode and decode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from native_helpers import PROMPT

from pyllama_turbo import Model, errors, kv, memory

TURBO = ("turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq")
BITS = {"2": 2, "3": 3, "4": 4}
SHAPES = [
    {"head_dim": 64, "n_head": 4, "n_head_kv": 4},
    {"head_dim": 128, "n_head": 4, "n_head_kv": 1},
    {"head_dim": 256, "n_head": 4, "n_head_kv": 2},
    {"head_dim": 64, "n_head": 7, "n_head_kv": 1},
    {"head_dim": 128, "arch": "qwen3moe", "n_expert": 4},
]


@pytest.mark.parametrize("name", TURBO)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_bits_a_value_are_exact(open_model: Callable[..., Model], name: str, shape: dict[str, int]) -> None:
    block = 128 if shape["head_dim"] % 128 == 0 else 64
    expected = BITS[name[5]] + 16 / block
    with open_model(**shape).context(256, kv=name) as ctx:
        assert [(x.k_bits, x.v_bits) for x in ctx.kv.effective] == [(expected, expected)] * 2
        assert {x.type_k for x in ctx.kv.effective} == {name if block == 128 else f"{name}_64"}
        assert ctx.kv.requested == (name, name) and ctx.kv.substituted == ()
        ctx.prefill(ctx.model.tokenizer.encode(PROMPT))
        assert np.isfinite(ctx.logits).all()


@pytest.mark.parametrize(
    "pair", ["q8_0/turbo3", "turbo4_tcq/turbo2", "f16/turbo3_tcq", "turbo4/q4_0", "turbo3/f16", "q4_0/q8_0"]
)
def test_k_and_v_are_chosen_apart(tiny: Model, pair: str) -> None:
    k, v = pair.split("/")
    with tiny.context(256, kv=pair) as ctx:
        layer = ctx.kv.effective[0]
        assert (kv.find(layer.type_k).family, kv.find(layer.type_v).family) == (k, v)
        ctx.prefill(tiny.tokenizer.encode(PROMPT))
        assert np.isfinite(ctx.logits).all()


@pytest.mark.parametrize("name", ["f16", "q8_0", "turbo3", "turbo4_tcq"])
@pytest.mark.parametrize("shape", [{}, {"arch": "gemma3", "n_layer": 6, "head_dim": 128}], ids=["llama", "gemma3"])
@pytest.mark.parametrize("swa_full", [False, True])
def test_the_estimate_equals_the_allocation(
    open_model: Callable[..., Model], name: str, shape: dict[str, int], swa_full: bool
) -> None:
    model = open_model(**shape)
    with model.context(1000, kv=name, swa_full=swa_full, k_center="off") as ctx:
        plan = memory.KVPlan(*model.kv_types(name), n_ubatch=512, swa_full=swa_full)
        assert memory.kv_bytes(model.shape, plan, 1000).total == ctx.kv.bytes
        assert sum(row.context_bytes for row in ctx.memory()) == pytest.approx(ctx.kv.bytes, rel=0.02)


def test_a_head_dim_without_a_block_is_refused_by_name(open_model: Callable[..., Model]) -> None:
    model = open_model(head_dim=96, n_head=4, n_head_kv=2)
    with pytest.raises(errors.UnsupportedError, match="96"):
        model.context(256, kv="turbo3")
    with pytest.raises(errors.UnsupportedError, match="96"):
        model.kv_types("turbo3")
    model.context(256, kv="q8_0").close()


def test_turbo_needs_flash_attention(tiny: Model) -> None:
    for pair in ("turbo3", "f16/turbo3", "turbo3/f16", "f16/q8_0"):
        with pytest.raises(errors.UnsupportedError, match="flash attention"):
            tiny.context(256, kv=pair, flash_attn="off")


def test_no_foreign_type_gets_through(tiny: Model) -> None:
    for name in ("i8", "q4_K", "q2_0", "turbo_q", "turbo_q_64", "42"):
        with pytest.raises(errors.OptionError, match="unknown KV cache type"):
            tiny.context(256, kv=name)


@pytest.mark.parametrize("name", TURBO)
@pytest.mark.parametrize("values", [64, 128, 192, 256])
def test_encode_and_decode(name: str, values: int) -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, values)).astype(np.float32)
    data = kv.encode(x, name)
    block = 128 if values % 128 == 0 else 64
    assert data.shape == (5, 3, values // block * (BITS[name[5]] * block // 8 + 2))
    back = kv.decode(data, name, values)
    assert back.shape == x.shape and back.dtype == np.float32
    error = float(np.mean((back - x) ** 2) / np.mean(x**2))
    assert error < {2: 0.13, 3: 0.04, 4: 0.012}[BITS[name[5]]]
    assert np.array_equal(kv.encode(x, name), data)


def test_zeros_come_back_as_zeros() -> None:
    for name in TURBO:
        assert not kv.decode(kv.encode(np.zeros((2, 128)), name), name, 128).any()


def test_bad_arrays_are_refused() -> None:
    for bad in (np.zeros(100), np.zeros((0, 128)), np.full((1, 128), np.nan), np.full((1, 128), np.inf), np.float32(1)):
        with pytest.raises(errors.OptionError):
            kv.encode(bad, "turbo3")
    with pytest.raises(errors.OptionError):
        kv.decode(np.zeros(51, np.uint8), "turbo3", 128)


@pytest.mark.parametrize("name", [*TURBO, "q8_0", "f16", "turbo3_64"])
@pytest.mark.parametrize("values", [64, 128, 192, 256, 320, 1024])
def test_decode_knows_the_length_of_a_row(name: str, values: int) -> None:
    x = np.random.default_rng(3).standard_normal((3, values), dtype=np.float32)
    data = kv.encode(x, name)
    assert np.array_equal(kv.decode(data, name), kv.decode(data, name, values))
    assert kv.decode(data, name).shape == x.shape
    with pytest.raises(errors.OptionError):
        kv.decode(np.zeros((3, 0), np.uint8), name)
