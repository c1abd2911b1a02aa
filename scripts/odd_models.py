"""Tiny random models of architectures whose caches differ from the plain case, for tests.

Each has one thing that a KV cache must get right: logits bent by a soft-cap (gemma2), attention sinks (gpt-oss), RoPE
on a part of the head (stablelm), layers that share another's cache and two head sizes (gemma4), a recurrent state
beside the cache (lfm2) or instead of it (mamba).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the sibling modules, also when loaded by path

from gguf_writer import GGUFWriter  # noqa: E402
from make_model import Weights  # noqa: E402
from tiny_vocab import CHAT_TEMPLATE, N_SPECIAL, add_vocabulary  # noqa: E402

N_EMBD, N_FF, N_VOCAB, N_HEAD, N_HEAD_KV = 256, 256, 512, 4, 2
N_SWA = 64


def _common(w: GGUFWriter, n_layer: int, head_dim: int) -> None:
    w.set(".context_length", 4096)
    w.set(".embedding_length", N_EMBD)
    w.set(".block_count", n_layer)
    w.set(".feed_forward_length", N_FF)
    w.set(".attention.head_count", N_HEAD)
    w.set(".attention.head_count_kv", N_HEAD_KV)
    w.set(".attention.key_length", head_dim)
    w.set(".attention.value_length", head_dim)
    w.set(".attention.layer_norm_rms_epsilon", 1e-5)
    w.set(".rope.dimension_count", head_dim)
    w.set(".rope.freq_base", 10000.0)
    w.set(".vocab_size", N_VOCAB)
    add_vocabulary(w, N_VOCAB, CHAT_TEMPLATE)


def _embeddings(x: Weights, *, tied: bool = False, norm: str = "output_norm") -> None:
    output = x.rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32) * np.float32(4 / N_EMBD**0.5)
    output[:N_SPECIAL] = 0.0  # greedy text never ends by accident
    if not tied:
        x.writer.add("output.weight", output.astype(x.dtype))
        output = x.rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32)
    x.writer.add("token_embd.weight", output.astype(x.dtype))
    x.vector(f"{norm}.weight", N_EMBD)


def _attention(x: Weights, p: str, head_dim: int, *, owns_kv: bool = True, qk_norm: bool = False) -> None:
    x.vector(p + "attn_norm.weight", N_EMBD)
    x.matrix(p + "attn_q", N_EMBD, N_HEAD * head_dim, gain=1.5)
    x.matrix(p + "attn_output", N_HEAD * head_dim, N_EMBD)
    if owns_kv:
        x.matrix(p + "attn_k", N_EMBD, N_HEAD_KV * head_dim)
        x.matrix(p + "attn_v", N_EMBD, N_HEAD_KV * head_dim)
    if qk_norm:
        x.vector(p + "attn_q_norm.weight", head_dim, mean=0.6)
        if owns_kv:
            x.vector(p + "attn_k_norm.weight", head_dim, mean=0.6)


def _feed_forward(x: Weights, p: str) -> None:
    x.vector(p + "ffn_norm.weight", N_EMBD)
    x.matrix(p + "ffn_gate", N_EMBD, N_FF)
    x.matrix(p + "ffn_up", N_EMBD, N_FF)
    x.matrix(p + "ffn_down", N_FF, N_EMBD)


def _post_norms(x: Weights, p: str) -> None:
    x.vector(p + "post_attention_norm.weight", N_EMBD)
    x.vector(p + "post_ffw_norm.weight", N_EMBD)


def _gemma2(w: GGUFWriter, x: Weights) -> None:
    _common(w, 4, 64)
    w.set(".attention.sliding_window", N_SWA)
    w.set(".attn_logit_softcapping", 5.0)  # low, so that it bends the logits of this model
    w.set(".final_logit_softcapping", 30.0)
    _embeddings(x, tied=True)
    for i in range(4):
        _attention(x, f"blk.{i}.", 64)
        _feed_forward(x, f"blk.{i}.")
        _post_norms(x, f"blk.{i}.")


def _gpt_oss(w: GGUFWriter, x: Weights) -> None:
    n_expert = 4
    _common(w, 2, 64)
    w.set(".attention.sliding_window", N_SWA)
    w.set(".expert_count", n_expert)
    w.set(".expert_used_count", 2)
    w.set(".expert_feed_forward_length", N_FF)
    _embeddings(x)
    for p in ("blk.0.", "blk.1."):
        _attention(x, p, 64)
        x.vector(p + "post_attention_norm.weight", N_EMBD)
        x.vector(p + "attn_sinks.weight", N_HEAD, spread=1.0)
        x.vector(p + "attn_output.bias", N_EMBD, mean=0.0)
        x.matrix(p + "ffn_gate_inp", N_EMBD, n_expert, gain=2.0)
        x.vector(p + "ffn_gate_inp.bias", n_expert, mean=0.0)
        for part, n_in, n_out in (("gate", N_EMBD, N_FF), ("up", N_EMBD, N_FF), ("down", N_FF, N_EMBD)):
            x.matrix(f"{p}ffn_{part}_exps", n_in, n_out, n_expert=n_expert)
            x.writer.add(f"{p}ffn_{part}_exps.bias", np.zeros((n_expert, n_out), np.float32))


def _stablelm(w: GGUFWriter, x: Weights) -> None:
    _common(w, 2, 64)
    w.set(".attention.layer_norm_epsilon", 1e-5)
    w.set(".rope.dimension_count", 32)  # half of the head
    w.set(".use_parallel_residual", True)
    _embeddings(x)
    x.vector("output_norm.bias", N_EMBD, mean=0.0)
    for p in ("blk.0.", "blk.1."):
        _attention(x, p, 64)
        _feed_forward(x, p)
        for norm in ("attn_norm", "ffn_norm"):
            x.vector(f"{p}{norm}.bias", N_EMBD, mean=0.0)


def _gemma4(w: GGUFWriter, x: Weights) -> None:
    """Layers: sliding, sliding, global, then sliding and global ones that use the caches of layers 1 and 2."""
    slides = [True, True, False, True, False]
    _common(w, len(slides), 128)
    w.set(".attention.sliding_window", N_SWA)
    w.set(".attention.sliding_window_pattern", slides)
    w.set(".attention.shared_kv_layers", 2)
    w.set(".attention.key_length_swa", 64)
    w.set(".attention.value_length_swa", 64)
    w.set(".rope.dimension_count_swa", 64)
    w.set(".rope.freq_base_swa", 1000.0)
    w.set(".embedding_length_per_layer_input", 0)
    _embeddings(x, tied=True)
    x.writer.add("rope_freqs.weight", np.ones(64, np.float32))
    for i, slide in enumerate(slides):
        p = f"blk.{i}."
        _attention(x, p, 64 if slide else 128, owns_kv=i < 3, qk_norm=True)
        _feed_forward(x, p)
        _post_norms(x, p)


def _lfm2(w: GGUFWriter, x: Weights) -> None:
    _common(w, 4, 64)
    w.set(".attention.head_count_kv", [0, N_HEAD_KV, 0, N_HEAD_KV])
    w.set(".shortconv.l_cache", 3)
    _embeddings(x, tied=True, norm="token_embd_norm")
    for i in range(4):
        p = f"blk.{i}."
        if i % 2:
            _attention(x, p, 64, qk_norm=True)
        else:
            x.vector(p + "attn_norm.weight", N_EMBD)
            x.writer.add(p + "shortconv.conv.weight", x.rng.standard_normal((N_EMBD, 3), dtype=np.float32))
            x.matrix(p + "shortconv.in_proj", N_EMBD, 3 * N_EMBD)
            x.matrix(p + "shortconv.out_proj", N_EMBD, N_EMBD)
        _feed_forward(x, p)


def _mamba(w: GGUFWriter, x: Weights) -> None:
    inner, state, rank = 2 * N_EMBD, 16, 16
    _common(w, 2, 64)
    w.set(".attention.head_count", 0)
    w.set(".attention.head_count_kv", 0)
    w.set(".ssm.conv_kernel", 4)
    w.set(".ssm.inner_size", inner)
    w.set(".ssm.state_size", state)
    w.set(".ssm.time_step_rank", rank)
    _embeddings(x, tied=True)
    for p in ("blk.0.", "blk.1."):
        x.vector(p + "attn_norm.weight", N_EMBD)
        x.matrix(p + "ssm_in", N_EMBD, 2 * inner)
        x.writer.add(p + "ssm_conv1d.weight", x.rng.standard_normal((inner, 4), dtype=np.float32))
        x.vector(p + "ssm_conv1d.bias", inner, mean=0.0)
        x.matrix(p + "ssm_x", inner, rank + 2 * state)
        x.matrix(p + "ssm_dt", rank, inner)
        x.vector(p + "ssm_dt.bias", inner, mean=-2.0)
        x.writer.add(p + "ssm_a", -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)))
        x.vector(p + "ssm_d", inner)
        x.matrix(p + "ssm_out", inner, N_EMBD)


MODELS: dict[str, Callable[[GGUFWriter, Weights], None]] = {
    "gemma2": _gemma2,
    "gpt-oss": _gpt_oss,
    "stablelm": _stablelm,
    "gemma4": _gemma4,
    "lfm2": _lfm2,
    "mamba": _mamba,
}


def write_odd(path: str | os.PathLike[str], arch: str, seed: int = 0) -> Path:
    """Write the tiny model of an architecture of `MODELS` and return its path."""
    writer = GGUFWriter(path, arch)
    MODELS[arch](writer, Weights(writer, seed, "f16"))
    return writer.write()
