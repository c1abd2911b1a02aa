"""Random Q4_0 models with the shapes of real ones, to measure speed and memory where the real weights are not at hand.

Weights come from one pool of random blocks per row length, written at a different starting block for every tensor:
the files are fast to make, need little memory, and no cache sees the same line twice in a layer. Text is noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf_writer import TENSOR_TYPES, GGUFWriter, tensor_bytes
from tiny_vocab import CHAT_TEMPLATE, add_vocabulary

POOL_ROWS = 4096


@dataclass(frozen=True)
class RealShape:
    """Sizes of one model. `swa` fields describe its sliding-window layers, where there are any."""

    summary: str
    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_ctx_train: int = 524288
    rope_freq_base: float = 1e6
    swa_pattern: int = 0
    n_swa: int = 0
    swa_n_head_kv: int = 0
    swa_head_dim: int = 0

    def slides(self, layer: int) -> bool:
        """Whether the layer has a sliding window: all but every `swa_pattern`-th."""
        return bool(self.swa_pattern) and layer % self.swa_pattern != self.swa_pattern - 1


SHAPES = {
    "qwen3moe-30b-a3b": RealShape(
        "Qwen3-30B-A3B: 48 layers, 32 query / 4 KV heads of 128, 128 experts, 8 used",
        arch="qwen3moe", n_layer=48, n_embd=2048, n_head=32, n_head_kv=4, head_dim=128, n_ff=6144, n_vocab=151936,
        n_expert=128, n_expert_used=8, n_ff_expert=768, rope_freq_base=1e7,
    ),
    "gemma4-26b-a4b": RealShape(
        "Gemma-4-26B-A4B: 30 layers, 5 of 6 sliding with 8 KV heads of 256, the others 2 of 512, 128 experts, 8 used",
        arch="gemma4", n_layer=30, n_embd=2816, n_head=16, n_head_kv=2, head_dim=512, n_ff=2112, n_vocab=262144,
        n_expert=128, n_expert_used=8, n_ff_expert=704, swa_pattern=6, n_swa=1024, swa_n_head_kv=8, swa_head_dim=256,
    ),
    "llama3-8b": RealShape(
        "Llama-3-8B: 32 layers, 32 query / 8 KV heads of 128, dense",
        arch="llama", n_layer=32, n_embd=4096, n_head=32, n_head_kv=8, head_dim=128, n_ff=14336, n_vocab=128256,
        rope_freq_base=5e5,
    ),
}  # fmt: skip


class _Q4Pool:
    """Random Q4_0 rows, reused from a new random position for every tensor."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[int, npt.NDArray[np.uint8]] = {}

    def chunks(self, shape: tuple[int, ...]) -> Callable[[], Iterator[bytes]]:
        n_in = shape[0]
        if n_in not in self._pools:
            self._pools[n_in] = self._make(n_in)
        pool, start = self._pools[n_in], int(self._rng.integers(POOL_ROWS))
        return lambda: _repeat(np.roll(pool, start, axis=0).tobytes(), tensor_bytes(shape, "q4_0"))

    def _make(self, n_in: int) -> npt.NDArray[np.uint8]:
        _, block_values, block_bytes = TENSOR_TYPES["q4_0"]
        blocks = self._rng.integers(0, 256, (POOL_ROWS, n_in // block_values, block_bytes), dtype=np.uint8)
        # Codes are uniform in -8..7 (rms 4.6): this scale gives matrices that keep unit variance.
        scale = np.float16(1.0 / (4.6 * n_in**0.5))
        blocks[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
        return blocks.reshape(POOL_ROWS, -1)


def _repeat(pool: bytes, n_bytes: int) -> Iterator[bytes]:
    while n_bytes > 0:
        yield pool[:n_bytes]
        n_bytes -= len(pool)


class _Tensors:
    """Adds tensors under llama.cpp's names."""

    def __init__(self, writer: GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._pool = _Q4Pool(seed)
        self._rng = np.random.default_rng(seed + 1)

    def matrix(self, name: str, *shape: int) -> None:
        self._writer.add_chunks(f"{name}.weight", shape, "q4_0", self._pool.chunks(shape))

    def ones(self, name: str, n: int) -> None:
        self._writer.add(name, np.ones(n, np.float32))

    def scales(self, name: str, n: int) -> None:
        """Factors around 1 that differ."""
        self._writer.add(name, (0.75 + np.arange(n) % 8 / 16).astype(np.float32))

    def router(self, name: str, n_embd: int, n_expert: int) -> None:
        values = self._rng.standard_normal((n_expert, n_embd), dtype=np.float32) * np.float32(0.02)
        self._writer.add(name, values)


def shrink(shape: RealShape) -> RealShape:
    """The same heads, windows, layer pattern and kind of experts in a model of a few megabytes, for tests."""
    experts = {"n_expert": 8, "n_expert_used": 2, "n_ff_expert": 64} if shape.n_expert else {}
    return replace(shape, n_layer=shape.swa_pattern or 2, n_embd=256, n_ff=128, n_vocab=512, **experts)


def write_shape(
    path: str | os.PathLike[str], name: str, *, n_layer: int | None = None, seed: int = 0, tiny: bool = False
) -> Path:
    """Write the random model of shape `name` (see `SHAPES`), with fewer layers if `n_layer` says so.

    `tiny` keeps what decides which kernels and caches it uses and makes everything else small (see `shrink`).

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
    """
    if name not in SHAPES:
        known = "\n".join(f"  {key}: {shape.summary}" for key, shape in SHAPES.items())
        raise ValueError(f"unknown shape {name!r}; known:\n{known}")
    shape = shrink(SHAPES[name]) if tiny else SHAPES[name]
    shape = replace(shape, n_layer=n_layer or shape.n_layer)
    writer = GGUFWriter(path, shape.arch)
    _set_metadata(writer, shape)
    add_vocabulary(writer, shape.n_vocab, CHAT_TEMPLATE)
    tensors = _Tensors(writer, seed)
    tensors.matrix("token_embd", shape.n_embd, shape.n_vocab)
    if shape.arch != "gemma4":  # whose output matrix is the embedding
        tensors.matrix("output", shape.n_embd, shape.n_vocab)
    tensors.ones("output_norm.weight", shape.n_embd)
    if shape.arch == "gemma4":
        tensors.ones("rope_freqs.weight", shape.head_dim // 2)
    for layer in range(shape.n_layer):
        (_add_gemma4_layer if shape.arch == "gemma4" else _add_layer)(tensors, shape, layer)
    return writer.write()


def _set_metadata(w: GGUFWriter, s: RealShape) -> None:
    w.set("general.name", f"random weights, shape of {s.summary.split(':')[0]}")
    w.set(".block_count", s.n_layer)
    w.set(".context_length", s.n_ctx_train)
    w.set(".embedding_length", s.n_embd)
    w.set(".feed_forward_length", s.n_ff)
    w.set(".attention.head_count", s.n_head)
    kv_heads = [s.swa_n_head_kv if s.slides(i) else s.n_head_kv for i in range(s.n_layer)]
    w.set(".attention.head_count_kv", kv_heads if s.swa_pattern else s.n_head_kv)
    w.set(".attention.layer_norm_rms_epsilon", 1e-6)
    w.set(".rope.freq_base", s.rope_freq_base)
    w.set(".vocab_size", s.n_vocab)
    for key in (".attention.key_length", ".attention.value_length", ".rope.dimension_count"):
        w.set(key, s.head_dim)
    if s.n_expert:
        w.set(".expert_count", s.n_expert)
        w.set(".expert_used_count", s.n_expert_used)
        w.set(".expert_feed_forward_length", s.n_ff_expert)
    if s.swa_pattern:
        for key in (".attention.key_length_swa", ".attention.value_length_swa", ".rope.dimension_count_swa"):
            w.set(key, s.swa_head_dim)
        w.set(".attention.sliding_window", s.n_swa)
        w.set(".attention.sliding_window_pattern", [s.slides(i) for i in range(s.n_layer)])
        w.set(".rope.freq_base_swa", 1e4)
    if s.arch == "gemma4":
        w.set(".embedding_length_per_layer_input", 0)
        w.set(".final_logit_softcapping", 30.0)


def _add_layer(t: _Tensors, s: RealShape, layer: int) -> None:
    p = f"blk.{layer}."
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    t.ones(p + "attn_norm.weight", s.n_embd)
    t.ones(p + "ffn_norm.weight", s.n_embd)
    t.matrix(p + "attn_q", s.n_embd, n_q)
    t.matrix(p + "attn_k", s.n_embd, n_kv)
    t.matrix(p + "attn_v", s.n_embd, n_kv)
    t.matrix(p + "attn_output", n_q, s.n_embd)
    if s.arch == "qwen3moe":
        t.ones(p + "attn_q_norm.weight", s.head_dim)
        t.ones(p + "attn_k_norm.weight", s.head_dim)
    if s.n_expert:
        t.router(p + "ffn_gate_inp.weight", s.n_embd, s.n_expert)
        t.matrix(p + "ffn_gate_exps", s.n_embd, s.n_ff_expert, s.n_expert)
        t.matrix(p + "ffn_up_exps", s.n_embd, s.n_ff_expert, s.n_expert)
        t.matrix(p + "ffn_down_exps", s.n_ff_expert, s.n_embd, s.n_expert)
    else:
        t.matrix(p + "ffn_gate", s.n_embd, s.n_ff)
        t.matrix(p + "ffn_up", s.n_embd, s.n_ff)
        t.matrix(p + "ffn_down", s.n_ff, s.n_embd)


GEMMA4_NORMS = (
    "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "pre_ffw_norm_2", "post_ffw_norm_1",
    "post_ffw_norm_2",
)  # fmt: skip


def _add_gemma4_layer(t: _Tensors, s: RealShape, layer: int) -> None:
    p = f"blk.{layer}."
    slides = s.slides(layer)
    head_dim, n_head_kv = (s.swa_head_dim, s.swa_n_head_kv) if slides else (s.head_dim, s.n_head_kv)
    for norm in GEMMA4_NORMS:
        t.ones(f"{p}{norm}.weight", s.n_embd)
    t.ones(p + "layer_output_scale.weight", 1)
    t.matrix(p + "attn_q", s.n_embd, s.n_head * head_dim)
    t.matrix(p + "attn_k", s.n_embd, n_head_kv * head_dim)
    if slides:  # a global layer's values are its keys before the rotary position
        t.matrix(p + "attn_v", s.n_embd, n_head_kv * head_dim)
    t.matrix(p + "attn_output", s.n_head * head_dim, s.n_embd)
    t.ones(p + "attn_q_norm.weight", head_dim)
    t.ones(p + "attn_k_norm.weight", head_dim)
    t.matrix(p + "ffn_gate", s.n_embd, s.n_ff)
    t.matrix(p + "ffn_up", s.n_embd, s.n_ff)
    t.matrix(p + "ffn_down", s.n_ff, s.n_embd)
    t.router(p + "ffn_gate_inp.weight", s.n_embd, s.n_expert)
    t.ones(p + "ffn_gate_inp.scale", s.n_embd)
    t.matrix(p + "ffn_gate_up_exps", s.n_embd, 2 * s.n_ff_expert, s.n_expert)
    t.matrix(p + "ffn_down_exps", s.n_ff_expert, s.n_embd, s.n_expert)
    t.scales(p + "ffn_down_exps.scale", s.n_expert)
