"""What a context reports about itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ContextFacts", "MemoryRow", "Perf", "Prefill"]


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
