"""What the memory can do, and how many bytes a step has to move: the roofline of a decode step."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UnsupportedError
from .events import PhaseRow, Profile

if TYPE_CHECKING:
    from ..context import Context
    from ..gguf import GGUFFile

__all__ = ["cache_bytes", "device_copy_rate", "host_copy_rate", "weight_bytes", "with_rates"]

# Kernels that read weights. Those of the same phases that prepare or gather activations read none.
_READS_WEIGHTS = re.compile(r"mul_mat|gemm|gemv|nvjet|cutlass|cublas|^MUL_MAT", re.IGNORECASE)
_WEIGHT_PHASES = ("experts", "matmul")

_COPY_BYTES = 512 << 20
_ROUNDS = 5


def weight_bytes(files: Sequence[GGUFFile], n_expert: int, n_expert_used: int) -> int:
    """Bytes of weights that one token reads: matrices, of experts the share that is used, no embedding table.

    A model without an output matrix reads its embedding table as one.
    """
    tensors = {name: info for file in files for name, info in file.tensors.items()}
    total = 0.0
    for name, info in tensors.items():
        if name.startswith("token_embd") and "output.weight" in tensors:
            continue
        if not name.endswith(".weight") or len(info.shape) < 2:
            continue
        total += info.n_bytes * (n_expert_used / n_expert if "_exps" in name and n_expert else 1.0)
    return int(total)


def cache_bytes(context: Context, depth: int) -> int:
    """Bytes of cached keys and values that attention reads for a token at position `depth`."""
    total = 0.0
    for layer in context.kv.effective:
        window = context.model.facts.n_swa if layer.part == "window" else 0
        seen = min(depth + 1, window) if window else depth + 1
        total += (layer.k_bytes + layer.v_bytes) * min(seen / layer.cells, 1.0)
    return int(total)


def with_rates(profile: Profile, weights: int, cache: int) -> Profile:
    """The profile with the memory rate of the phases whose traffic follows from the shapes, where events lack it.

    All weights of a token over the time of all kernels that read weights is the rate of the heaviest weight phase; the
    cache up to the depth over the time of the attention kernels is the rate of theirs.

    Args:
        profile: without rates.
        weights: bytes of weights a step reads.
        cache: bytes of cached keys and values a step reads.
    """
    heavy = max((row for row in profile.phases if row.phase in _WEIGHT_PHASES), key=lambda r: r.us_step, default=None)
    reading = [k for k in profile.kernels if k.phase in _WEIGHT_PHASES and _READS_WEIGHTS.search(k.name)]
    weight_us = sum(kernel.us_step for kernel in reading)

    def rate(row: PhaseRow) -> float:
        if row.gb_s:
            return row.gb_s
        if heavy is not None and row.phase == heavy.phase and weight_us:
            return weights / weight_us / 1e3
        return cache / row.us_step / 1e3 if row.phase == "kv_read" and row.us_step else 0.0

    return replace(profile, phases=tuple(replace(row, gb_s=rate(row)) for row in profile.phases))


def host_copy_rate(n_bytes: int = 128 << 20) -> float:
    """Bytes read and written per nanosecond (GB/s) by one thread that copies."""
    source = np.ones(n_bytes, np.uint8)
    target = np.empty_like(source)
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter_ns()
        np.copyto(target, source)
        best = min(best, time.perf_counter_ns() - start)
    return 2 * n_bytes / best


def device_copy_rate() -> float:
    """Bytes read and written per nanosecond (GB/s) by copies within the GPU's memory, through the driver.

    Raises:
        UnsupportedError: no driver, or no memory for it.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UnsupportedError("no NVIDIA driver was found (libcuda.so.1)") from None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    size = ctypes.c_size_t(_COPY_BYTES)

    def call(name: str, *arguments: object) -> None:
        if getattr(cuda, name)(*arguments) != 0:
            raise UnsupportedError(f"the copy rate could not be measured: {name} failed")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxPushCurrent_v2", context)
        call("cuMemAlloc_v2", ctypes.byref(source), size)
        call("cuMemAlloc_v2", ctypes.byref(target), size)
        best = float("inf")
        for _ in range(_ROUNDS):
            start = time.perf_counter_ns()
            for _ in range(4):
                call("cuMemcpyDtoDAsync_v2", target, source, size, None)
            call("cuCtxSynchronize")
            best = min(best, time.perf_counter_ns() - start)
        return 4 * 2 * _COPY_BYTES / best
    finally:
        for pointer in (source, target):
            if pointer.value:
                cuda.cuMemFree_v2(pointer)
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        cuda.cuDevicePrimaryCtxRelease_v2(device)
