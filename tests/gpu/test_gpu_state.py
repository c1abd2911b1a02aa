"""Saved state on a GPU: goes on the same way for every type, after shifts, in windows, for several sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_runs import TYPES, context, difference, load, on_gpu, prompt
from runs import go_on, same

from pyllama_turbo import Context, Model, state

Tiny = Callable[..., Path]
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "head dim 128": {"head_dim": 128},
    "sliding windows": {"weight_type": "f32", "arch": "gemma3", "n_layer": 6, "head_dim": 128},
    # f16 shows whether both contexts fuse the same operations: the two ways round differently
    "sliding windows, f16": {"arch": "gemma3", "n_layer": 6, "head_dim": 128},
}
N = 64
ROUNDING = 1e-5  # the same kernels on the same cells


def make(model: Model, kv: str, **keywords: object) -> Context:
    return context(model, True, kv, 512, n_ubatch=64, **keywords)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv", TYPES)
def test_a_file_goes_on_the_same_way(tiny_model: Tiny, tmp_path: Path, kv: str, shape: str) -> None:
    with load(tiny_model(**SHAPES[shape]), gpu=True) as model:
        with make(model, kv) as ctx:
            assert all(on_gpu(ctx))
            ctx.prefill(prompt(model, 150))
            state.save(ctx, tmp_path / "s")
            expected = go_on(ctx, 9, N)
        with make(model, kv) as ctx:
            assert state.load(ctx, tmp_path / "s") == 150
            assert same(go_on(ctx, 9, N), expected, ROUNDING)


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("n_after", [0, 3])
def test_after_a_context_shift(tiny_model: Tiny, kv: str, n_after: int) -> None:
    with load(tiny_model(), gpu=True) as model:
        with make(model, kv) as ctx:
            ctx.prefill(prompt(model, 150))
            ctx.seqs.discard_oldest(0, 4)
            go_on(ctx, 7, n_after)
            data = state.get_bytes(ctx)
            known, expected = ctx.seqs.tokens(), go_on(ctx, 9, N)
        with make(model, kv) as ctx:
            state.set_bytes(ctx, data)
            assert ctx.seqs.tokens() == known
            assert same(go_on(ctx, 9, N), expected, ROUNDING)


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("unified", [False, True])
def test_several_sequences_at_once_and_one_by_one(tiny_model: Tiny, kv: str, unified: bool) -> None:
    sequences = {"n_seq_max": 3, "kv_unified": unified}
    with load(tiny_model(), gpu=True) as model:
        with make(model, kv, **sequences) as ctx:
            for seq in range(3):
                ctx.prefill(prompt(model, 40 + 20 * seq, seq), seq=seq)
            whole = state.get_bytes(ctx, seq=None)
            parts = [state.get_bytes(ctx, seq) for seq in range(3)]
            expected = [go_on(ctx, 9, N, seq)[0] for seq in range(3)]
        with make(model, kv, **sequences) as ctx:
            ctx.prefill([5, 6, 7], seq=1)
            assert state.set_bytes(ctx, whole, seq=None) == 40 + 60 + 80
            assert [go_on(ctx, 9, N, seq)[0] for seq in range(3)] == expected
        with make(model, kv, **sequences) as ctx:
            for seq in (2, 0, 1):
                state.set_bytes(ctx, parts[seq], (seq + 1) % 3)
            # Other cells in a cache for all: attention adds up in another order, which near ties may show.
            for seq in range(3):
                tokens = go_on(ctx, 9, N, (seq + 1) % 3)[0]
                assert tokens[:8] == expected[seq][:8] if unified else tokens == expected[seq]


@pytest.mark.parametrize("kv", TYPES)
def test_from_the_cpu_to_the_gpu_and_back(tiny_model: Tiny, kv: str) -> None:
    path = tiny_model(head_dim=128)
    with load(path, gpu=False) as cpu, load(path, gpu=True) as gpu:
        with context(cpu, False, "f32", 512, k_center="off") as ctx:
            ctx.prefill(prompt(cpu, 150))
            exact = ctx.logits[0].copy()
        for saving, loading in ((cpu, gpu), (gpu, cpu)):
            with context(saving, saving is gpu, kv, 512) as ctx:
                ctx.prefill(prompt(saving, 150))
                moved = difference(ctx.logits[0], exact)
                data = state.get_bytes(ctx)
                tokens, rows = go_on(ctx, 9, N)
            with context(loading, loading is gpu, kv, 512) as ctx:
                assert state.set_bytes(ctx, data) == 150
                again = []
                for token in [9, *tokens[:-1]]:
                    ctx.decode([token])
                    again.append(ctx.logits[0].copy())
                # The first token sees the very same cache; later ones add keys that each side encodes itself.
                assert difference(again[0], rows[0]) < 0.02, kv
                assert max(difference(a, b) for a, b in zip(again, rows)) < 2 * moved + 0.02, kv
                assert state.get_bytes(ctx, 0) is not None
