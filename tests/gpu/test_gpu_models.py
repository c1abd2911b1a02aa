"""Tiny random models on the GPU against the CPU of the same library: every KV type, several shapes, both paths."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyllama_turbo import Model

KV = ["turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq", "q8_0", "q4_0", "f16"]
PAIRS = ["q8_0/turbo3", "f16/turbo3", "turbo4/turbo3", "turbo4_tcq/turbo3_tcq", "turbo3/f16"]
SHAPES = {
    "64 gqa1": {"head_dim": 64, "n_head": 4, "n_head_kv": 4},
    "64 gqa4": {"head_dim": 64, "n_head": 8, "n_head_kv": 2},
    "128 gqa7": {"head_dim": 128, "n_head": 7, "n_head_kv": 1},
    "128 gqa8": {"head_dim": 128, "n_head": 16, "n_head_kv": 2},
    "256 gqa4": {"head_dim": 256, "n_head": 4, "n_head_kv": 1},
}
N = 96


def logits_of(path: Path, kv: str, on_gpu: bool, one_by_one: bool) -> np.ndarray:
    """Logits [N, n_vocab] of a fixed token sequence."""
    layers = "all" if on_gpu else 0
    with (
        Model.open(path, n_gpu_layers=layers) as model,
        model.context(
            n_ctx=512, kv=kv, logits_all=True, n_threads=4, offload_kqv=on_gpu, op_offload=on_gpu, n_batch=128
        ) as ctx,
    ):
        tokens = [(7 * i * i + 3 * i + 1) % model.facts.n_vocab for i in range(N)]
        if on_gpu:
            assert all("CUDA" in x.device_k and "CUDA" in x.device_v for x in ctx.kv.effective)
        if not one_by_one:
            ctx.decode(tokens, outputs="all")
            return ctx.logits.copy()
        rows = []
        for pos, token in enumerate(tokens):
            ctx.decode([token], pos=pos)
            rows.append(ctx.logits[0].copy())
        return np.stack(rows)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Relative difference of two sets of logits."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv", KV + PAIRS)
def test_gpu_gives_the_cpu_logits(kv: str, shape: str, tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(**SHAPES[shape])
    reference = logits_of(path, "f16", on_gpu=False, one_by_one=False)
    for one_by_one in (False, True):
        cpu = logits_of(path, kv, on_gpu=False, one_by_one=one_by_one)
        gpu = logits_of(path, kv, on_gpu=True, one_by_one=one_by_one)
        assert np.isfinite(gpu).all()
        # Quantising moves the logits. Both backends must move them equally far from f16, and lie no further apart than
        # two independent quantisations would: keys that differ in the last bits before encoding may get other codes.
        moved_cpu, moved_gpu = difference(cpu, reference), difference(gpu, reference)
        assert moved_gpu < 1.15 * moved_cpu + 0.003, (kv, shape, one_by_one, moved_cpu, moved_gpu)
        assert difference(gpu, cpu) < 1.3 * moved_cpu + 0.003, (kv, shape, one_by_one)


@pytest.mark.parametrize("kv", ["f16", "q8_0", "turbo3", "turbo3_tcq"])
def test_cuda_graphs_do_not_change_greedy_text(kv: str, tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(head_dim=128, n_head=16, n_head_kv=2)
    program = (
        "import sys; from pyllama_turbo import Model\n"
        "m = Model.open(sys.argv[1], n_gpu_layers='all'); c = m.context(n_ctx=512, kv=sys.argv[2])\n"
        "print([e.token for e in c.generate([1, 5, 9, 2], max_tokens=200, temperature=0, ignore_eos=True)])\n"
    )
    texts = []
    for off in (False, True):
        env = dict(os.environ)
        env.pop("GGML_CUDA_DISABLE_GRAPHS", None)
        if off:
            env["GGML_CUDA_DISABLE_GRAPHS"] = "1"
        done = subprocess.run(
            [sys.executable, "-c", program, str(path), kv], env=env, capture_output=True, text=True, check=True
        )
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert len(texts[0]) > 200


def test_twenty_runs_have_one_hash(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(head_dim=128, n_head=16, n_head_kv=2)
    with Model.open(path, n_gpu_layers="all") as model:
        seen = set()
        for _ in range(20):
            with model.context(n_ctx=512, kv="turbo3") as ctx:
                seen.add(ctx.complete([1, 5, 9, 2], max_tokens=60, temperature=0, ignore_eos=True))
    assert len(seen) == 1
