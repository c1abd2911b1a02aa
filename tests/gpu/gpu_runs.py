"""What the GPU tests share: KV types, and one sequence of operations on the CPU and on the GPU of the same library."""

from __future__ import annotations

import numpy as np
from runs import difference, prompt

from pyllama_turbo import Context, Model

__all__ = ["TURBO", "TYPES", "context", "difference", "load", "on_gpu", "prompt", "within_noise"]

TURBO = ("turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq")
TYPES = ("f16", "q8_0", "q4_0", *TURBO)


def load(path: object, gpu: bool | int) -> Model:
    """The model with all layers on the GPU, none, or as many as said."""
    layers = gpu if type(gpu) is int else "all" if gpu else 0
    return Model.open(path, n_gpu_layers=layers)  # type: ignore[arg-type]


def context(model: Model, gpu: bool, kv: str, n_ctx: int = 256, **keywords: object) -> Context:
    """A context whose every operation runs on the one side or on the other."""
    keywords = {"n_threads": 2, **keywords}
    return model.context(n_ctx, kv=kv, offload_kqv=gpu, op_offload=gpu, **keywords)


def on_gpu(ctx: Context) -> list[bool]:
    """For each layer with a cache, whether it lies, and attention runs, on a GPU."""
    return ["CUDA" in layer.device_k and "CUDA" in layer.device_v for layer in ctx.kv.effective]


def within_noise(gpu: np.ndarray, cpu: np.ndarray, exact: np.ndarray, slack: float = 0.01) -> None:
    """Both sides moved equally far from exact keys and values, and lie no further apart than two quantisations would.

    Keys that differ in the last bits before they are encoded may get other codes, so the sides differ by about what the
    type costs; `slack` is what f16 costs.
    """
    assert np.isfinite(gpu).all()
    moved_cpu, moved_gpu = difference(cpu, exact), difference(gpu, exact)
    apart = difference(gpu, cpu)
    assert moved_gpu < 1.15 * moved_cpu + slack, (moved_gpu, moved_cpu, apart)
    assert apart < 1.3 * moved_cpu + slack, (moved_gpu, moved_cpu, apart)
