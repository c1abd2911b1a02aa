"""What a context reports about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _native, kv

__all__ = ["ContextFacts", "MemoryRow", "Perf", "Prefill", "read_facts", "read_kv_layers", "read_memory", "read_perf"]

_PARTS = {0: "full", 1: "window", 2: "other"}


@dataclass(frozen=True)
class ContextFacts:
    """A context as it was made; the library rounds `n_ctx` up. `n_ctx_seq` is what one sequence can hold."""

    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_threads: int
    n_threads_batch: int
    n_embd_out: int
    pooling_type: int
    flash_attn: bool
    kv_unified: bool
    can_shift: bool
    has_memory: bool
    is_recurrent: bool


@dataclass(frozen=True)
class MemoryRow:
    """Bytes in one kind of buffer ("CPU", "CUDA0")."""

    buffer: str
    model_bytes: int
    context_bytes: int
    compute_bytes: int


@dataclass(frozen=True)
class Perf:
    """Native timings since the context was made or `reset_perf` was called."""

    prompt_ms: float
    decode_ms: float
    n_prompt: int
    n_decode: int
    n_reused: int


@dataclass(frozen=True)
class Prefill:
    """How a prompt got into the cache: tokens taken from it, and tokens computed."""

    n_reused: int
    n_computed: int


def read_facts(b: _native.Binding, pointer: Any) -> ContextFacts:
    """The facts of a native context."""
    row = b.ffi.new("turbo_context_facts *")
    _native.check(b, b.lib.turbo_context_get_facts(pointer, row))
    values = {
        name: bool(getattr(row, name)) if kind == "bool" else getattr(row, name)
        for name, kind in ContextFacts.__annotations__.items()
    }
    return ContextFacts(**values)


def _center(cells: int, n_cells: int) -> str:
    """How the keys of a layer are centred, in words, from the number of cells that share a centre."""
    return "none" if cells == 0 else "one centre" if cells == n_cells else f"runs of {cells}"


def read_kv_layers(b: _native.Binding, pointer: Any) -> tuple[kv.KVLayer, ...]:
    """The layers of a native context's cache, read back from its tensors."""
    n = _native.check(b, b.lib.turbo_kv_layers(pointer, b.ffi.NULL, 0))
    rows = b.ffi.new("turbo_kv_layer[]", max(n, 1))
    _native.check(b, b.lib.turbo_kv_layers(pointer, rows, n))
    return tuple(
        kv.KVLayer(
            layer=row.layer,
            part=_PARTS[row.part],
            type_k=_native.text(b, row.type_k),
            type_v=_native.text(b, row.type_v),
            k_bytes=row.k_bytes,
            v_bytes=row.v_bytes,
            k_bits=8 * row.k_bytes / row.k_values if row.k_values else 0.0,
            v_bits=8 * row.v_bytes / row.v_values if row.v_values else 0.0,
            cells=row.n_cells * row.n_stream,
            k_center=_center(row.k_center_cells, row.n_cells),
            device_k=_native.text(b, row.buffer_k),
            device_v=_native.text(b, row.buffer_v),
        )
        for row in (rows[i] for i in range(n))
    )


def read_memory(b: _native.Binding, pointer: Any) -> tuple[MemoryRow, ...]:
    """Bytes by kind of buffer of a native context and its model."""
    n = _native.check(b, b.lib.turbo_memory_breakdown(pointer, b.ffi.NULL, 0))
    rows = b.ffi.new("turbo_memory_row[]", max(n, 1))
    _native.check(b, b.lib.turbo_memory_breakdown(pointer, rows, n))
    return tuple(
        MemoryRow(_native.text(b, r.buffer), r.model_bytes, r.context_bytes, r.compute_bytes)
        for r in (rows[i] for i in range(n))
    )


def read_perf(b: _native.Binding, pointer: Any) -> Perf:
    """Timings of a native context."""
    row = b.ffi.new("turbo_perf *")
    _native.check(b, b.lib.turbo_perf_get(pointer, row))
    return Perf(row.prompt_ms, row.decode_ms, row.n_prompt, row.n_decode, row.n_reused)
