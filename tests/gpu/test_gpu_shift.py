"""K-shift on a GPU: the logits of the CPU, with keys centred and balanced too, and far past the end of the context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_runs import TYPES, context, load, on_gpu, prompt, within_noise

from pyllama_turbo import Context

Tiny = Callable[..., Path]
SHAPES = {
    "outliers in the keys": {"arch": "qwen2", "k_bias": 20.0},
    "head dim 128": {"head_dim": 128, "n_head": 8, "n_head_kv": 2},
    "partial RoPE": {"odd": "stablelm"},
}
N, N_DROPPED, N_CTX = 96, 32, 256


def after_a_shift(ctx: Context) -> np.ndarray:
    """Logits of a token before and after the first N_DROPPED were dropped and the gap was closed, [2, n_vocab]."""
    ids = prompt(ctx.model, N)
    ctx.decode(ids)
    plain = ctx.logits[0].copy()
    ctx.seqs.remove(0, N - 1)
    ctx.seqs.remove(0, 0, N_DROPPED)
    ctx.seqs.shift(0, N_DROPPED, -1, -N_DROPPED)
    ctx.decode(ids[-1:])
    return np.stack([plain, ctx.logits[0]])


def past_the_end(ctx: Context) -> np.ndarray:
    """Logits at the ends of parts of 32 tokens, of four times as many tokens as fit, [n, n_vocab]."""
    rows, ids = [], prompt(ctx.model, 4 * N_CTX)
    for first in range(0, len(ids), 32):
        if ctx.seqs.next_position() + 32 > N_CTX:
            ctx.seqs.discard_oldest(0, 8)
        ctx.decode(ids[first : first + 32])
        rows.append(ctx.logits[0].copy())
    return np.stack(rows)


@pytest.mark.parametrize("run", [after_a_shift, past_the_end])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k_center", ["auto", "off"])
def test_shifted_keys_give_the_cpu_logits(
    tiny_model: Tiny, shape: str, k_center: str, run: Callable[[Context], np.ndarray]
) -> None:
    with load(tiny_model(**SHAPES[shape]), gpu=False) as cpu, load(tiny_model(**SHAPES[shape]), gpu=True) as gpu:
        with context(cpu, False, "f32", k_center="off") as ctx:
            exact = run(ctx)
        for kv in TYPES:
            with context(cpu, False, kv, k_center=k_center) as ctx:
                there = run(ctx)
                source = ctx.kv.centering.source
            with context(gpu, True, kv, k_center=k_center) as ctx:
                assert all(on_gpu(ctx)) and ctx.kv.centering.source == source
                here = run(ctx)
            try:
                within_noise(here, there, exact)
            except AssertionError as error:
                raise AssertionError(f"{kv}: {error}") from None


@pytest.mark.parametrize("kv", TYPES)
def test_text_goes_on_past_the_end(tiny_model: Tiny, kv: str) -> None:
    with load(tiny_model(), gpu=True) as model, context(model, True, kv) as ctx:
        ids = prompt(model, 40)
        keywords = {"max_tokens": 4 * N_CTX, "ignore_eos": True, "temperature": 1.0, "seed": 3}
        with ctx.generate(ids, context_shift=True, n_keep=8, **keywords) as run:
            event = list(run)[-1]
        assert event.finish_reason == "length" and event.n_generated == 4 * N_CTX
        assert np.isfinite(ctx.logits).all()
        known = ctx.seqs.tokens()
        assert known is not None and known[:8] == tuple(ids[:8])
        assert known[8:] == tuple(run.tokens[:-1])[-len(known[8:]) :]
