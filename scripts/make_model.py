#!/usr/bin/env python3
"""Write GGUF models with random weights: tiny ones for tests, real shapes for speed measurements.

    python scripts/make_model.py OUT.gguf --head-dim 128 --n-head 4 --n-head-kv 1
    python scripts/make_model.py OUT.gguf --arch qwen3moe --n-expert 4
    python scripts/make_model.py OUT.gguf --shape qwen3moe-30b-a3b --n-layer 12

Needs numpy only. A tiny model is well conditioned (every layer keeps values near unit variance, logits differ by
several units from token to token) and carries a small working tokenizer, so that prompts, sampling and text streaming
can be tested. Its text is noise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the sibling modules, also when loaded by path

from gguf_writer import GGUFWriter  # noqa: E402
from tiny_vocab import CHAT_TEMPLATE, N_SPECIAL, add_vocabulary  # noqa: E402

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """What an architecture's tensors have beyond the common ones."""

    qk_norm: bool = False
    qkv_bias: bool = False
    post_norm: bool = False
    tied: bool = False
    swa_pattern: int = 0  # every n-th layer is global, the others slide; 0: all global
    soft_cap: float = 0.0  # of attention logits
    shared_kv: int = 0  # so many last layers read the keys and values of earlier ones (gemma4)
    sinks: bool = False  # attention sinks, as gpt-oss has them: with biases everywhere, one norm before the experts


ARCHS = {
    "llama": Features(),
    "qwen2": Features(qkv_bias=True),
    "qwen3": Features(qk_norm=True),
    "qwen3moe": Features(qk_norm=True),
    "gemma2": Features(post_norm=True, tied=True, swa_pattern=2, soft_cap=50.0),
    "gemma4": Features(qk_norm=True, post_norm=True, tied=True, swa_pattern=2, shared_kv=2),
    "gpt-oss": Features(qkv_bias=True, swa_pattern=2, sinks=True),
    "gemma3": Features(qk_norm=True, post_norm=True, tied=True, swa_pattern=6),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of one model; the names are llama.cpp's."""

    arch: str
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_embd: int
    n_ff: int
    n_expert: int
    n_vocab: int
    n_ctx_train: int
    n_swa: int


class Weights:
    """Random tensors of one model, scaled so that activations keep unit variance."""

    def __init__(self, writer: GGUFWriter, seed: int, weight_type: str) -> None:
        self.writer = writer
        self.rng = np.random.default_rng(seed)
        self.dtype = {"f32": np.float32, "f16": np.float16}[weight_type]

    def matrix(self, name: str, n_in: int, n_out: int, *, gain: float = 1.0, n_expert: int = 0) -> None:
        """Add NAME.weight, normal values of deviation gain / sqrt(n_in); a matrix for each expert if there are any."""
        shape = (n_expert, n_out, n_in) if n_expert else (n_out, n_in)
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(gain / n_in**0.5)
        self.writer.add(f"{name}.weight", values.astype(self.dtype))

    def vector(self, name: str, n: int, *, spread: float = 0.1, mean: float = 1.0) -> None:
        """Add n float32 values, normal with this mean and deviation; the name is taken as it is."""
        values = mean + spread * self.rng.standard_normal(n, dtype=np.float32)
        self.writer.add(name, values.astype(np.float32))


def write_model(
    path: str | os.PathLike[str],
    arch: str = "llama",
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int = 64,
    n_embd: int | None = None,
    n_ff: int = 256,
    n_expert: int = 0,
    n_vocab: int = 512,
    seed: int = 0,
    *,
    n_expert_used: int = 2,
    n_ctx_train: int = 4096,
    n_swa: int = 64,
    rope_freq_base: float = 10000.0,
    weight_type: str = "f16",
    k_bias: float = 0.0,
    logit_gain: float = 4.0,
    chat_template: str | None = CHAT_TEMPLATE,
    vocab: bool = True,
    metadata: Sequence[tuple[str, str | int | float | bool]] = (),
) -> Path:
    """Write a tiny random model and return its path; the same arguments give the same bytes.

    Args:
        path: the file to write; its folder is created.
        arch: one of `ARCHS` ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "gemma4", "gpt-oss").
            "llama" with `n_expert` is a MoE too.
        n_layer: transformer layers.
        n_head: query heads; a multiple of `n_head_kv`.
        n_head_kv: key and value heads.
        head_dim: values of one head, for keys and values alike.
        n_embd: width of the residual stream; None: n_head * head_dim for qwen2 (which needs it), else 128.
        n_ff: width of the feed-forward layer (of each expert, for a MoE).
        n_expert: experts of a layer; 0: a dense model.
        n_vocab: tokens; at least 354.
        seed: of the weights.
        n_expert_used: experts taken per token.
        n_ctx_train: context length written into the file.
        n_swa: sliding window in tokens, for architectures that have one.
        rope_freq_base: base of the rotary frequencies.
        weight_type: "f16" or "f32" (matrices only; vectors are always f32).
        k_bias: for qwen2, the size of outliers put into the K bias of the first layer (real Qwen2.5 models: 145-354).
        logit_gain: standard deviation of the logits.
        chat_template: Jinja text, or None for a model without one.
        vocab: False writes a file without tokenizer data.
        metadata: further entries, key and value.

    Raises:
        ValueError: for shapes that no such model can have.
    """
    if n_embd is None:
        n_embd = n_head * head_dim if arch == "qwen2" else 128
    shape = Shape(arch, n_layer, n_head, n_head_kv, head_dim, n_embd, n_ff, n_expert, n_vocab, n_ctx_train, n_swa)
    _check(shape)
    writer = GGUFWriter(path, arch)
    _set_metadata(writer, shape, n_expert_used, rope_freq_base)
    add_vocabulary(writer, n_vocab, chat_template, empty=not vocab)
    for key, value in metadata:
        writer.set(key, value)
    weights = Weights(writer, seed, weight_type)
    _add_embeddings(weights, shape, logit_gain)
    for i in range(n_layer):
        _add_attention(weights, shape, i, k_bias if i == 0 else 0.0)
        _add_feed_forward(weights, shape, i)
    return writer.write()


def _check(s: Shape) -> None:
    if s.arch not in ARCHS:
        raise ValueError(f"unknown architecture {s.arch!r}; known: {', '.join(sorted(ARCHS))}")
    if s.n_head % s.n_head_kv:
        raise ValueError(f"{s.n_head} query heads are no multiple of {s.n_head_kv} KV heads")
    if s.head_dim % 2:
        raise ValueError(f"head_dim {s.head_dim} is odd; rotary positions need pairs")
    if s.arch == "qwen2" and s.n_embd != s.n_head * s.head_dim:
        raise ValueError("qwen2 needs n_embd = n_head * head_dim")
    if s.arch in ("qwen3moe", "gpt-oss") and s.n_expert == 0:
        raise ValueError(f"{s.arch} needs n_expert > 0")
    if s.n_expert and s.arch not in ("llama", "qwen3moe", "gpt-oss"):
        raise ValueError(f"{s.arch} has no expert layers")


def _set_metadata(w: GGUFWriter, s: Shape, n_expert_used: int, rope_freq_base: float) -> None:
    w.set("general.name", f"random {s.arch} {s.n_layer}x{s.n_embd}, heads {s.n_head}/{s.n_head_kv} of {s.head_dim}")
    w.set(".context_length", s.n_ctx_train)
    w.set(".embedding_length", s.n_embd)
    w.set(".block_count", s.n_layer)
    w.set(".feed_forward_length", s.n_ff)
    w.set(".attention.head_count", s.n_head)
    w.set(".attention.head_count_kv", s.n_head_kv)
    w.set(".attention.key_length", s.head_dim)
    w.set(".attention.value_length", s.head_dim)
    w.set(".attention.layer_norm_rms_epsilon", 1e-5)
    w.set(".rope.dimension_count", s.head_dim)
    w.set(".rope.freq_base", rope_freq_base)
    w.set(".vocab_size", s.n_vocab)
    if s.n_expert:
        w.set(".expert_count", s.n_expert)
        w.set(".expert_used_count", min(n_expert_used, s.n_expert))
        w.set(".expert_feed_forward_length", s.n_ff)
    if ARCHS[s.arch].swa_pattern:
        w.set(".attention.sliding_window", s.n_swa)
    if ARCHS[s.arch].shared_kv:
        w.set(".attention.shared_kv_layers", ARCHS[s.arch].shared_kv)
        w.set(".attention.sliding_window_pattern", [(i + 1) % ARCHS[s.arch].swa_pattern != 0 for i in range(s.n_layer)])
        for key in (".attention.key_length_swa", ".attention.value_length_swa", ".rope.dimension_count_swa"):
            w.set(key, s.head_dim)
        w.set(".embedding_length_per_layer_input", 0)
    if ARCHS[s.arch].soft_cap:
        w.set(".attn_logit_softcapping", ARCHS[s.arch].soft_cap)
        w.set(".final_logit_softcapping", 30.0)


def _add_embeddings(weights: Weights, s: Shape, logit_gain: float) -> None:
    rng = weights.rng
    gain = np.float32(logit_gain / s.n_embd**0.5)
    output = rng.standard_normal((s.n_vocab, s.n_embd), dtype=np.float32) * gain
    # Logit 0 for the special tokens: greedy text never ends by accident, so tests may count tokens.
    output[:N_SPECIAL] = 0.0
    if ARCHS[s.arch].tied:
        weights.writer.add("token_embd.weight", output.astype(weights.dtype))
    else:
        embd = rng.standard_normal((s.n_vocab, s.n_embd), dtype=np.float32)
        weights.writer.add("token_embd.weight", embd.astype(weights.dtype))
        weights.writer.add("output.weight", output.astype(weights.dtype))
    if ARCHS[s.arch].shared_kv:
        weights.vector("rope_freqs.weight", s.head_dim // 2, spread=0.0)
    weights.vector("output_norm.weight", s.n_embd)


def _add_attention(weights: Weights, s: Shape, layer: int, k_bias: float) -> None:
    p, features = f"blk.{layer}.", ARCHS[s.arch]
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    weights.vector(p + "attn_norm.weight", s.n_embd)
    weights.matrix(p + "attn_q", s.n_embd, n_q, gain=1.5)  # above 1, so that attention is not flat
    weights.matrix(p + "attn_k", s.n_embd, n_kv)
    weights.matrix(p + "attn_v", s.n_embd, n_kv)
    weights.matrix(p + "attn_output", n_q, s.n_embd)
    if features.qkv_bias:
        weights.vector(p + "attn_q.bias", n_q, mean=0.0)
        _add_k_bias(weights, p + "attn_k.bias", n_kv, s.head_dim, k_bias)
        weights.vector(p + "attn_v.bias", n_kv, mean=0.0)
    if features.qk_norm:
        weights.vector(p + "attn_q_norm.weight", s.head_dim, mean=1.5)
        weights.vector(p + "attn_k_norm.weight", s.head_dim)
    if features.sinks:
        weights.vector(p + "attn_sinks.weight", s.n_head, mean=0.0, spread=1.0)
        weights.vector(p + "attn_output.bias", s.n_embd, mean=0.0)
    if features.post_norm or features.sinks:
        weights.vector(p + "post_attention_norm.weight", s.n_embd)


def _add_k_bias(weights: Weights, name: str, n_kv: int, head_dim: int, outlier: float) -> None:
    bias = weights.rng.standard_normal(n_kv, dtype=np.float32) * np.float32(0.7)
    if outlier:
        bias[head_dim - 1 :: head_dim] = outlier  # the slowest rotary pair of every head, as real models have it
        bias[head_dim // 2 - 1 :: head_dim] = -outlier / 2
    weights.writer.add(name, bias)


def _add_feed_forward(weights: Weights, s: Shape, layer: int) -> None:
    p, features = f"blk.{layer}.", ARCHS[s.arch]
    if not features.sinks:
        weights.vector(p + "ffn_norm.weight", s.n_embd)
    suffix = "_exps" if s.n_expert else ""
    if s.n_expert:
        weights.matrix(p + "ffn_gate_inp", s.n_embd, s.n_expert, gain=2.0)
    weights.matrix(p + "ffn_gate" + suffix, s.n_embd, s.n_ff, n_expert=s.n_expert)
    weights.matrix(p + "ffn_up" + suffix, s.n_embd, s.n_ff, n_expert=s.n_expert)
    weights.matrix(p + "ffn_down" + suffix, s.n_ff, s.n_embd, n_expert=s.n_expert)
    if features.sinks:
        _add_expert_biases(weights, s, p)
    if features.post_norm:
        weights.vector(p + "post_ffw_norm.weight", s.n_embd)


def _add_expert_biases(weights: Weights, s: Shape, p: str) -> None:
    weights.vector(p + "ffn_gate_inp.bias", s.n_expert, mean=0.0)
    for name, n in (("gate", s.n_ff), ("up", s.n_ff), ("down", s.n_embd)):
        values = 0.1 * weights.rng.standard_normal((s.n_expert, n), dtype=np.float32)
        weights.writer.add(f"{p}ffn_{name}_exps.bias", values.astype(np.float32))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Write a GGUF model with random weights.")
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("--shape", help="shape of a real model, Q4_0, for speed only; LIST lists them")
    parser.add_argument("--tiny", action="store_true", help="with --shape: the same heads and layer pattern, but small")
    parser.add_argument("--arch", choices=sorted(ARCHS), default="llama")
    for name, default in (("n-head", 4), ("n-head-kv", 2), ("head-dim", 64), ("n-ff", 256), ("n-expert", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default {default}")
    parser.add_argument("--n-layer", type=int, metavar="N", help="default 2; with --shape the model's own")
    parser.add_argument("--n-embd", type=int, metavar="N", help="default 128; qwen2: heads * head dim")
    parser.add_argument("--n-vocab", type=int, default=512, metavar="N", help="default 512")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    parser.add_argument("--weight-type", choices=("f16", "f32"), default="f16")
    parser.add_argument("--k-bias", type=float, default=0.0, metavar="X", help="outliers in qwen2's first K bias")
    args = vars(parser.parse_args(argv))
    path, shape, n_layer, tiny = args.pop("path"), args.pop("shape"), args.pop("n_layer"), args.pop("tiny")
    try:
        if shape is not None:
            import model_shapes

            model_shapes.write_shape(path, shape, n_layer=n_layer, seed=args["seed"], tiny=tiny)
        else:
            write_model(path, n_layer=n_layer or 2, **args)
    except (ValueError, OSError) as error:
        print(f"make_model: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
