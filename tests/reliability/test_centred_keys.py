"""Centred keys change nothing but the stored numbers: same logits in caches of float precision, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from runs import difference, go_on, prompt, same

from pyllama_turbo import Context, Model, centers, errors, state

Open = Callable[..., Model]
CENTRED = {
    "llama": {},
    "llama MoE": {"arch": "qwen3moe", "n_expert": 4},
    "key bias": {"arch": "qwen2", "k_bias": 30.0},
    "query and key norms": {"arch": "qwen3"},
    "sliding windows": {"arch": "gemma3", "n_layer": 6, "head_dim": 64},
    "partial RoPE": {"odd": "stablelm"},
    "shared caches, two head sizes": {"odd": "gemma4"},
    "recurrent state beside it": {"odd": "lfm2"},
}
REFUSED = {"gemma2": "soft-cap", "gpt-oss": "sinks"}


def large_means(model: Model, size: float = 3.0) -> centers.KeyMeans:
    """Random mean keys larger than the keys themselves, and random moments: a place that forgets them cannot hide."""
    rng = np.random.default_rng(5)
    layers = []
    for i, facts in enumerate(model.layers):
        if facts.has_kv and facts.n_head_kv:
            values = (size * rng.standard_normal(facts.n_head_kv * facts.head_dim_k)).astype(np.float32)
            moments = np.exp(0.5 * rng.standard_normal((4, values.size))).astype(np.float32)
            layers.append(centers.LayerMean(i, values, moments, True, 0.0, 0.0))
    return centers.KeyMeans("test", tuple(layers))


def centred(model: Model, kv: str, **keywords: object) -> Context:
    ctx = model.context(256, kv=kv, k_center="off", n_threads=1, **keywords)
    centers.install(ctx._binding, ctx.pointer(), large_means(model))
    return ctx


# The matrices of these models are f16, and so are what they multiply: that alone is 4e-4.
@pytest.mark.parametrize("name", CENTRED)
@pytest.mark.parametrize(("kv", "rounding"), [("f32", 1e-3), ("f16", 6e-3), ("q8_0", 0.09)])
def test_the_logits_are_the_same(open_model: Open, name: str, kv: str, rounding: float) -> None:
    model = open_model(**CENTRED[name])
    ids = prompt(model, 100)
    flash = {"flash_attn": "off" if kv == "f32" else "on"}  # flash attention takes float32 keys as f16
    with model.context(256, kv=kv, k_center="off", n_threads=1, **flash) as ctx:
        ctx.prefill(ids)
        first = ctx.logits[0].copy()
        tokens, rows = go_on(ctx, 9, 8)
    with centred(model, kv, **flash) as ctx:
        ctx.prefill(ids)
        assert difference(ctx.logits[0], first) < rounding
        for token, row in zip([9, *tokens], rows):
            ctx.decode([token])
            assert difference(ctx.logits[0], row) < rounding


@pytest.mark.parametrize("odd", REFUSED)
@pytest.mark.parametrize("kv", ["f32", "q8_0", "turbo3"])
def test_what_is_not_a_plain_softmax_is_refused_by_name(open_model: Open, odd: str, kv: str) -> None:
    model = open_model(odd=odd)
    with model.context(256, kv=kv) as ctx:
        if kv != "f32":
            assert REFUSED[odd] in ctx.kv.centering.reason and ctx.kv.centering.source == ""
        with pytest.raises(errors.UnsupportedError, match=REFUSED[odd]):
            centers.install(ctx._binding, ctx.pointer(), large_means(model))
    with pytest.raises(errors.UnsupportedError, match=REFUSED[odd]):
        model.context(256, kv="turbo3", k_center="bias")


@pytest.mark.parametrize("name", ["llama", "partial RoPE", "shared caches, two head sizes"])
@pytest.mark.parametrize(("kv", "rounding"), [("q8_0", 0.12), ("turbo4", 0.6)])
def test_shifted_copied_and_saved_as_without_centre(open_model: Open, name: str, kv: str, rounding: float) -> None:
    model = open_model(**CENTRED[name])

    def run(ctx: Context) -> list[np.ndarray]:
        ctx.prefill(prompt(model, 90))
        ctx.seqs.copy(0, 1)
        ctx.seqs.remove(1, 80)
        ctx.decode([9], seq=1)
        rows = [ctx.logits[0].copy()]
        ctx.seqs.remove(0, 0, 30)
        ctx.seqs.shift(0, 30, -1, -30)
        ctx.decode([9], seq=0)
        rows.append(ctx.logits[0].copy())
        return rows

    keywords = {"n_seq_max": 2, "kv_unified": True, "swa_full": True}
    with model.context(256, kv="f32", n_threads=1, **keywords) as ctx:
        expected = run(ctx)
    with model.context(256, kv=kv, n_threads=1, **keywords) as ctx:
        assert ctx.kv.centering.source == "calibrated"
        for found, row in zip(run(ctx), expected):
            assert difference(found, row) < rounding
        data = state.get_bytes(ctx, 0)
        goes_on = go_on(ctx, 9, 8)
    with model.context(256, kv=kv, n_threads=1, **keywords) as ctx:
        state.set_bytes(ctx, data, 0)
        assert same(go_on(ctx, 9, 8), goes_on, 2e-2)  # the other sequence is not there: other cells are skipped


def test_float_keys_with_a_centre_are_not_shifted(open_model: Open) -> None:
    # upstream turns float keys in place, without taking a centre off first
    with centred(open_model(), "f16") as ctx:
        ctx.prefill(prompt(ctx.model, 20))
        with pytest.raises(errors.UnsupportedError, match="shift"):
            ctx.seqs.shift(0, 10, -1, 5)
