"""No layer, half of them and all on the GPU: the same logits up to what f16 differs by, and the report says where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gpu_runs import TYPES, difference, load, on_gpu, prompt, within_noise

from pyllama_turbo import Model

N, N_LAYER = 96, 4


def logits_of(model: Model, kv: str, on: int) -> np.ndarray:
    """Logits [N, n_vocab] of a fixed text: a prompt, then token by token."""
    with model.context(256, kv=kv, logits_all=True, n_threads=2, k_center="off") as ctx:
        where = on_gpu(ctx)
        assert sum(where) == on and where == sorted(where), where  # the last layers go first
        ids = prompt(model, N)
        ctx.decode(ids[: N // 2], outputs="all")
        rows = list(ctx.logits.copy())
        for token in ids[N // 2 :]:
            ctx.decode([token])
            rows.append(ctx.logits[0].copy())
        return np.stack(rows)


def test_some_layers_on_the_gpu(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(n_layer=N_LAYER, head_dim=128, n_head=8, n_head_kv=2)
    found: dict[tuple[str, int], np.ndarray] = {}
    for asked, on in ((0, 0), (N_LAYER // 2 + 1, N_LAYER // 2), (N_LAYER + 1, N_LAYER)):  # the output layer counts
        with load(path, asked) as model:
            for kv in TYPES:
                found[kv, on] = logits_of(model, kv, on)
    noise = max(difference(found["f16", on], found["f16", 0]) for on in (N_LAYER // 2, N_LAYER))
    assert noise < 0.01, noise
    for kv in TYPES:
        for on in (N_LAYER // 2, N_LAYER):
            try:
                within_noise(found[kv, on], found[kv, 0], found["f16", 0], slack=noise + 0.003)
            except AssertionError as error:
                raise AssertionError(f"{kv}, {on} layers: {error}") from None


def test_the_cache_can_stay_behind(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(n_layer=N_LAYER, head_dim=128, n_head=8, n_head_kv=2)
    with load(path, gpu=True) as model, load(path, gpu=False) as cpu:
        for kv in ("f16", "turbo3", "turbo3_tcq"):
            texts = []
            for one, offload in ((model, True), (model, False), (cpu, False)):
                with one.context(256, kv=kv, k_center="off", offload_kqv=offload, n_threads=2) as ctx:
                    assert on_gpu(ctx) == [offload] * N_LAYER
                    ctx.decode(prompt(one, N))
                    texts.append(ctx.logits[0].copy())
            assert difference(texts[1], texts[2]) < 0.02 + difference(texts[0], texts[2])
