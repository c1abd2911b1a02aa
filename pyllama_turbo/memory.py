"""Memory of a model and its KV cache, computed from the file's header before anything is loaded.

Weights and KV cache are exact: they follow from tensor shapes and from how the cache is laid out (whole rows per cell,
sliding-window layers with cells for the window and one batch, layers that share another's cache counted once). Copies
of weights that the CPU backend repacks for speed are not counted: the mapped originals can be dropped for them. The
compute buffer is an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .shape import LayerKV, ModelShape

CELL_STEP = 256  # llama.cpp rounds the cells of a cache up to this
MAX_N_CTX = 1 << 28


class BlockFormat(Protocol):
    """A storage format: `block_bytes` bytes hold `block_values` values."""

    @property
    def name(self) -> str:
        """Name of the format."""

    @property
    def block_values(self) -> int:
        """Values of one block."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""


@dataclass(frozen=True)
class KVPlan:
    """How a cache is to be stored.

    Attributes:
        type_k: format of the keys; `k_overrides` names layers (by index) that keep theirs in another.
        type_v: format of the values.
        n_seq: sequences that share the context, each with its own part.
        n_ubatch: tokens computed at once; decides the size of sliding-window caches.
        swa_full: sliding-window layers keep the whole context.
    """

    type_k: BlockFormat
    type_v: BlockFormat
    k_overrides: Mapping[int, BlockFormat] = field(default_factory=dict)
    n_seq: int = 1
    n_ubatch: int = 512
    swa_full: bool = False

    def k_of(self, layer: LayerKV) -> BlockFormat:
        """Format of one layer's keys."""
        return self.k_overrides.get(layer.index, self.type_k)


@dataclass(frozen=True)
class KVBytes:
    """Bytes of a KV cache. `per_token` is what one more token of context costs, `fixed` what does not grow."""

    total: int
    per_token: int
    fixed: int


@dataclass(frozen=True)
class Estimate:
    """Memory of a model with one context, in bytes. `compute` is an estimate, the rest is exact."""

    weights: int
    kv: KVBytes
    recurrent: int
    compute: int
    n_ctx: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.kv.total + self.recurrent + self.compute


def row_bytes(kind: BlockFormat, n_values: int) -> int:
    """Bytes of `n_values` values in whole blocks.

    Raises:
        ValueError: the values do not fill whole blocks.
    """
    if n_values % kind.block_values:
        raise ValueError(f"{n_values} values do not fill whole {kind.name} blocks of {kind.block_values}")
    return n_values // kind.block_values * kind.block_bytes


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def layer_cells(layer: LayerKV, plan: KVPlan, n_ctx: int) -> int:
    """Cells (token slots) of one layer's cache for a context of `n_ctx` tokens over all sequences.

    A layer with a window needs slots for the window and the batch that is being written, unless `plan.swa_full`.
    """
    per_sequence = _round_up(-(-n_ctx // plan.n_seq), CELL_STEP)
    if layer.window and not plan.swa_full:
        per_sequence = _round_up(min(per_sequence, layer.window + plan.n_ubatch), CELL_STEP)
    return plan.n_seq * per_sequence


def kv_bytes(shape: ModelShape, plan: KVPlan, n_ctx: int) -> KVBytes:
    """Bytes of the KV cache of `n_ctx` tokens over all sequences.

    Raises:
        ValueError: a layer's row does not fill whole blocks of the format.
    """
    total = per_token = fixed = 0
    for layer in shape.layers:
        size = row_bytes(plan.k_of(layer), layer.k_values) + row_bytes(plan.type_v, layer.v_values)
        cells = layer_cells(layer, plan, n_ctx)
        total += size * cells
        if layer.window == 0 or plan.swa_full:
            per_token += size
        else:
            fixed += size * cells
    return KVBytes(total, per_token, fixed)


def estimate(shape: ModelShape, plan: KVPlan, n_ctx: int) -> Estimate:
    """Memory of the model with one context of `n_ctx` tokens.

    Raises:
        ValueError: as `kv_bytes`.
    """
    n_ctx = _round_up(n_ctx, CELL_STEP)
    return Estimate(
        weights=shape.weights_bytes,
        kv=kv_bytes(shape, plan, n_ctx),
        recurrent=shape.recurrent_bytes * plan.n_seq,
        compute=compute_bytes(shape, plan.n_ubatch, mask_cells(shape, plan, n_ctx)),
        n_ctx=n_ctx,
    )


def mask_cells(shape: ModelShape, plan: KVPlan, n_ctx: int) -> int:
    """Cells that the attention masks of a batch cover: those of one sequence, once for each kind of layer."""
    kinds = {layer.window: layer_cells(layer, plan, n_ctx) // plan.n_seq for layer in shape.layers}
    return sum(kinds.values())


def compute_bytes(shape: ModelShape, n_ubatch: int = 512, n_cells: int = 0, n_outputs: int = 64) -> int:
    """Estimate of the compute buffer of a context with flash attention, as the CPU backend allocates it.

    Memory is reused along the graph, so the largest of three moments counts: the feed-forward layer (its gate, up and
    product, beside the residual stream), attention (queries, output, keys, values), each with the masks (16 bits for
    each of `mask_cells` and each token of a batch), and at the end `n_outputs` rows of logits.
    """
    used = max(shape.n_expert_used, 1)
    feed_forward = 3 * shape.n_ff * used + (3 + used) * shape.n_embd
    attention = 2 * shape.n_embd + max(
        (2 * shape.n_head[x.index] * x.head_dim_k + x.k_values + x.v_values for x in shape.layers), default=0
    )
    return max(
        4 * n_ubatch * max(feed_forward, attention) + 2 * n_ubatch * n_cells,
        4 * (n_outputs * shape.n_vocab + 2 * n_ubatch * shape.n_embd),
    )


def fit_n_ctx(shape: ModelShape, plan: KVPlan, free_bytes: int) -> int:
    """Largest context, in tokens (a multiple of 256), whose memory fits into `free_bytes` together with the model.

    Returns 0 if nothing fits. The model's training length is not looked at; a model whose cache does not grow gives
    `MAX_N_CTX`.
    """
    low, high = 0, MAX_N_CTX // CELL_STEP
    while low < high:
        middle = (low + high + 1) // 2
        fits = estimate(shape, plan, middle * CELL_STEP).total <= free_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * CELL_STEP


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Host memory that can be had without swapping, a container's limit included; None if the system does not say."""
    found = []
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    try:
        group = root / "sys/fs/cgroup"
        limit = int((group / "memory.max").read_text())  # "max" when unlimited: no number, no bound
        found.append(limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(found, default=None)
