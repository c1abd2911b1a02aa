"""Centres of runs of cells on a GPU: used where the CPU uses them, exact wherever keys lie, also after a shift."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_runs import TURBO, difference, load, on_gpu, prompt, within_noise
from gpu_runs import context as context_on
from runs import go_on, same
from test_center_runs import kinds, refilled, shifted, straight
from test_centred_keys import large_means

from pyllama_turbo import Context, Model, centers

Tiny = Callable[..., Path]
SHAPES = {
    "64": {},
    "128, eight query heads": {"head_dim": 128, "n_head": 8, "n_head_kv": 1},
    "256": {"head_dim": 256},
    "key bias": {"arch": "qwen2", "k_bias": 20.0},
    "partial RoPE": {"odd": "stablelm"},
}


def with_means(model: Model, gpu: bool, kv: str, n_ctx: int = 512, **keywords: object) -> Context:
    """A context whose keys lack centres of runs that are larger than the keys."""
    ctx = context_on(model, gpu, kv, n_ctx, k_center="off", n_ubatch=64, **keywords)
    centers.install(ctx._binding, ctx.pointer(), large_means(model))
    assert "runs of 64" in kinds(ctx)
    return ctx


def after_shifts(ctx: Context) -> list[np.ndarray]:
    """Batches and single tokens before, between and after two shifts, then from an empty cache again."""
    found = []

    def go(n: int, salt: int) -> None:
        ctx.decode(prompt(ctx.model, n, salt))
        found.append(ctx.logits[0].copy())
        for token in prompt(ctx.model, 6, salt + 1):  # often enough for a recorded graph of launches
            ctx.decode([token])
            found.append(ctx.logits[0].copy())

    go(200, 0)
    for drop in (70, 40):  # the second from keys that lack the one centre already
        ctx.seqs.remove(0, 10, 10 + drop)
        ctx.seqs.shift(0, 10 + drop, -1, -drop)
        go(50, drop)
    ctx.seqs.clear()
    go(200, 3)
    return found


@pytest.mark.parametrize("run", [straight, refilled, after_shifts])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_logits_are_those_of_the_cpu(
    tiny_model: Tiny, shape: str, run: Callable[[Context], list[np.ndarray]]
) -> None:
    with load(tiny_model(**SHAPES[shape]), gpu=False) as cpu, load(tiny_model(**SHAPES[shape]), gpu=True) as gpu:
        with context_on(cpu, False, "f32", 512, k_center="off", n_ubatch=64) as ctx:
            exact = np.stack(run(ctx))
        for kv in ("q8_0", "q4_0", "q8_0/turbo3", "turbo3", "turbo4", "turbo3_tcq", "turbo4_tcq"):
            with with_means(cpu, False, kv) as ctx:
                there = np.stack(run(ctx))
            with with_means(gpu, True, kv) as ctx:
                assert all(on_gpu(ctx))
                here = np.stack(run(ctx))
            if kv == "q8_0":  # rounding alone; a centre that is forgotten, or the next run's, makes several times that
                assert max(difference(a, b) for a, b in zip(here, exact, strict=True)) < 0.12
            try:
                within_noise(here, there, exact)
            except AssertionError as error:
                raise AssertionError(f"{kv}: {error}") from None


@pytest.mark.parametrize("kv", ["q8_0", "turbo3_tcq"])
def test_sequences_side_by_side(tiny_model: Tiny, kv: str) -> None:
    def run(ctx: Context) -> np.ndarray:
        found = []
        for seq, n in ((0, 200), (1, 90), (2, 150)):
            ctx.decode(prompt(ctx.model, n, seq), seq=seq, outputs="none")
        ctx.seqs.copy(0, 1)
        for seq in (2, 0, 1):
            ctx.decode(prompt(ctx.model, 30, 5 + seq), seq=seq)
            found.append(ctx.logits[0].copy())
            ctx.decode([9], seq=seq)
            found.append(ctx.logits[0].copy())
        return np.stack(found)

    path = tiny_model(head_dim=128)
    with load(path, gpu=False) as cpu, load(path, gpu=True) as gpu:
        with context_on(cpu, False, "f32", 1536, k_center="off", n_ubatch=64, n_seq_max=3) as ctx:
            exact = run(ctx)
        with with_means(cpu, False, kv, 1536, n_seq_max=3) as ctx:
            there = run(ctx)
        with with_means(gpu, True, kv, 1536, n_seq_max=3) as ctx:
            within_noise(run(ctx), there, exact)


@pytest.mark.parametrize("kv", ["q8_0", *TURBO])
def test_an_emptied_cache_begins_with_runs_again(tiny_model: Tiny, kv: str) -> None:
    with load(tiny_model(head_dim=128), gpu=True) as model:
        ids = prompt(model, 200)
        with with_means(model, True, kv) as ctx:
            ctx.prefill(ids)
            expected = go_on(ctx, 9, 8)
        with with_means(model, True, kv) as ctx:
            shifted(ctx)
            go_on(ctx, 9, 8)
            ctx.seqs.remove(0)
            ctx.prefill(ids)
            assert same(go_on(ctx, 9, 8), expected)


@pytest.mark.parametrize(
    ("n_ctx", "keywords", "expected"),
    [
        (256, {"kv": "turbo3"}, "runs of 64"),
        (8192, {"kv": "q4_0"}, "runs of 64"),
        (8448, {"kv": "q8_0/turbo3"}, "runs of 128"),
        (40960, {"kv": "turbo3_tcq"}, "runs of 256"),
        (512, {"kv": "q8_0", "n_seq_max": 2}, "runs of 64"),
        (512, {"kv": "q8_0", "n_seq_max": 2, "kv_unified": True}, "one centre"),
        (512, {"kv": "q8_0/f16", "flash_attn": "off"}, "one centre"),
        (512, {"kv": "q5_1"}, "one centre"),
        (512, {"kv": "turbo3", "k_center": "off"}, "none"),
        (512, {"kv": "f16/turbo3"}, "none"),
    ],
    ids=str,
)
def test_where_runs_are_used(tiny_model: Tiny, n_ctx: int, keywords: dict[str, object], expected: str) -> None:
    path = tiny_model()
    for gpu in (False, True):
        with load(path, gpu) as model, context_on(model, gpu, n_ctx=n_ctx, **keywords) as ctx:  # type: ignore[arg-type]
            assert {x.k_center for x in ctx.kv.effective} == {expected}


def test_layers_here_and_there(tiny_model: Tiny) -> None:
    """Without op_offload: a GPU that takes over the attention of a layer on the CPU reads a copy of its keys."""
    path = tiny_model(n_layer=4, head_dim=128, n_head=8, n_head_kv=2)
    found = []
    for asked in (0, 3, 5):
        with load(path, asked) as model:
            for kv in ("f16", "turbo3_tcq"):
                with model.context(256, kv=kv, n_threads=2, logits_all=True, op_offload=False) as ctx:
                    assert {x.k_center for x in ctx.kv.effective} == {"none" if kv == "f16" else "runs of 64"}
                    ctx.decode(prompt(model, 96), outputs="all")
                    found.append(ctx.logits.copy())
    for here in (2, 4):
        within_noise(found[here + 1], found[1], found[0], slack=difference(found[here], found[0]) + 0.003)
