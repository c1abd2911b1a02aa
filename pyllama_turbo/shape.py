"""What a model's KV cache looks like, read from GGUF metadata: heads, head dims, windows, who owns a cache.

The rules follow llama.cpp's loading code for the architectures that differ from the plain case. The native library
has the last word: `ctx.kv.effective` is read back from its tensors. This module serves questions that come before a
model is loaded (which types fit, how much memory, how much context).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .gguf import GGUFFile, read_model

MAX_LAYERS = 1024

# Default layer pattern where the file gives none: every n-th layer is global, the last of its group or the first.
_SWA_PATTERN_LAST = {
    "afmoe": 4, "cohere2": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "llama4": 4,
    "mellum": 4, "muse-glimmer": 4, "olmo2": 4, "gpt-oss": 2, "plamo3": 8,
}  # fmt: skip
_SWA_PATTERN_FIRST = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}
_SWA_WINDOW = {"exaone-moe": 128, "gemma2": 4096, "llama4": 8192, "smallthinker": 4096}
_SWA_IGNORED = {"phi3"}  # files of this architecture name a window that llama.cpp does not apply
_KV_FROM_START = {"gemma3n": 20}


@dataclass(frozen=True)
class LayerKV:
    """The cache of one layer. `window` is its sliding window in tokens, 0 for a layer that sees everything."""

    index: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    window: int

    @property
    def k_values(self) -> int:
        """Key values of one token."""
        return self.n_head_kv * self.head_dim_k

    @property
    def v_values(self) -> int:
        """Value values of one token; 0 where V is a view of K."""
        return self.n_head_kv * self.head_dim_v


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model that decide its memory. `layers` holds the layers that own a cache, and only those."""

    arch: str
    name: str
    n_layer: int
    n_embd: int
    n_head: tuple[int, ...]
    n_ctx_train: int
    n_vocab: int
    n_ff: int
    n_expert: int
    n_expert_used: int
    layers: tuple[LayerKV, ...]
    n_shared: int
    n_recurrent: int
    recurrent_bytes: int
    mla: bool
    softcap: bool
    weights_bytes: int
    n_weights: int
    weight_types: dict[str, int] = field(repr=False)

    @property
    def head_dims(self) -> tuple[int, ...]:
        """The distinct head dims of K and V over all caches, ascending."""
        return tuple(sorted({d for layer in self.layers for d in (layer.head_dim_k, layer.head_dim_v) if d}))

    @property
    def gqa(self) -> int:
        """Largest number of query heads that share a KV head."""
        return max((self.n_head[layer.index] // layer.n_head_kv for layer in self.layers), default=0)

    @property
    def kv_values(self) -> int:
        """K and V values of one token over all layers."""
        return sum(layer.k_values + layer.v_values for layer in self.layers)


def model_shape(model: GGUFFile | Sequence[GGUFFile] | str | os.PathLike[str]) -> ModelShape:
    """Derive the shape of a model from its header, the headers of its parts, or its path.

    Raises:
        GGUFError: the file cannot be read, or lacks what every language model has.
    """
    if isinstance(model, (str, os.PathLike)):
        model = read_model(model)
    files = [model] if isinstance(model, GGUFFile) else list(model)
    head = files[0]
    n_all = head.require(".block_count", MAX_LAYERS)
    n_layer = max(n_all - head.integer(".nextn_predict_layers"), 0) or n_all
    n_embd = head.require(".embedding_length")
    n_head = head.per_layer(".attention.head_count", n_layer)
    attention, recurrent = _attention_layers(files, n_layer, head.per_layer(".attention.head_count_kv", n_layer, -1))
    mla = head.get(".attention.key_length_mla") is not None
    layers = _kv_layers(head, n_layer, n_head, attention, mla)
    return ModelShape(
        arch=head.arch,
        name=head.string("general.name") or head.path.stem,
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_ctx_train=head.integer(".context_length"),
        n_vocab=_n_vocab(head),
        n_ff=max(head.per_layer(".feed_forward_length", n_layer), default=0),
        n_expert=head.integer(".expert_count"),
        n_expert_used=max(head.per_layer(".expert_used_count", n_layer), default=0),
        layers=layers,
        n_shared=len(attention) - len(layers),
        n_recurrent=len(recurrent),
        recurrent_bytes=len(recurrent) * _recurrent_layer_bytes(head, n_embd),
        mla=mla,
        softcap=bool(head.get(".attn_logit_softcapping")),
        weights_bytes=sum(f.weights_bytes for f in files),
        n_weights=sum(f.n_weights for f in files),
        weight_types=_weight_types(files),
    )


def _n_vocab(head: GGUFFile) -> int:
    tokens = head.get("tokenizer.ggml.tokens")
    if tokens is None or isinstance(tokens, (bool, int, float, str)):
        return head.integer(".vocab_size")
    return len(tokens) if isinstance(tokens, tuple) else tokens.length


def _weight_types(files: Sequence[GGUFFile]) -> dict[str, int]:
    """Bytes per tensor type, the largest first."""
    sizes: dict[str, int] = {}
    for tensor in (t for f in files for t in f.tensors.values()):
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.n_bytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


_BLOCK = re.compile(r"^blk\.(\d+)\.(\w+)")


def _attention_layers(
    files: Sequence[GGUFFile], n_layer: int, n_head_kv: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Layers with attention and layers with recurrent state, told by their tensors (a layer may be both)."""
    parts: dict[int, set[str]] = {}
    for name in (name for f in files for name in f.tensors):
        match = _BLOCK.match(name)
        if match:
            parts.setdefault(int(match[1]), set()).add(match[2])
    recurrent = {i for i, p in parts.items() if any(t.startswith(("ssm_", "shortconv", "time_mix")) for t in p)}
    separate_k = {i for i, p in parts.items() if p & {"attn_k", "attn_k_b", "attn_kv_a_mqa"}}
    # A joint attn_qkv matrix belongs to attention, except in linear-attention layers, which are recurrent.
    attention = separate_k | {i for i, p in parts.items() if "attn_qkv" in p and i not in recurrent}
    shared = {i for i, p in parts.items() if "attn_q" in p} - recurrent
    has_heads = {i for i in range(n_layer) if n_head_kv[i] != 0}
    keep = range(n_layer)
    return [i for i in keep if i in (attention | shared) & has_heads], [i for i in keep if i in recurrent]


def _kv_layers(
    head: GGUFFile, n_layer: int, n_head: tuple[int, ...], attention: list[int], mla: bool
) -> tuple[LayerKV, ...]:
    heads_kv = head.per_layer(".attention.head_count_kv", n_layer, -1)
    default_dim = head.require(".embedding_length") // max(n_head[0], 1)
    dim_k = head.integer(".attention.key_length", default_dim)
    dim_v = head.integer(".attention.value_length", default_dim)
    swa_k = head.integer(".attention.key_length_swa", dim_k)
    swa_v = head.integer(".attention.value_length_swa", dim_v)
    windows = layer_windows(head, n_layer)
    first_shared = cache_owners(head, n_layer)
    layers = []
    for i in attention:
        if i >= first_shared:
            continue
        k, v = (swa_k, swa_v) if windows[i] else (dim_k, dim_v)
        n_kv = heads_kv[i] if heads_kv[i] >= 0 else n_head[i]
        layers.append(LayerKV(i, n_kv, k, 0 if mla else v, windows[i]))
    return tuple(layers)


def cache_owners(head: GGUFFile, n_layer: int) -> int:
    """Layers at the start that have a cache of their own; those behind use theirs."""
    return min(_KV_FROM_START.get(head.arch, n_layer - head.integer(".attention.shared_kv_layers")), n_layer)


def layer_windows(head: GGUFFile, n_layer: int) -> tuple[int, ...]:
    """Sliding window of every layer in tokens, 0 for a global one."""
    arch, pattern = head.arch, head.get(".attention.sliding_window_pattern")
    window = head.integer(".attention.sliding_window", _SWA_WINDOW.get(arch, 0))
    if window == 0 or arch in _SWA_IGNORED:
        return (0,) * n_layer
    if isinstance(pattern, tuple):
        return tuple(window if slides else 0 for slides in head.per_layer(".attention.sliding_window_pattern", n_layer))
    step = pattern if isinstance(pattern, int) else 0
    if arch in _SWA_PATTERN_FIRST:
        step = step or _SWA_PATTERN_FIRST[arch]
        return tuple(window if i % step != 0 else 0 for i in range(n_layer))
    step = step or _SWA_PATTERN_LAST.get(arch, 0)
    return tuple(window if step and i % step < step - 1 else 0 for i in range(n_layer))


def _recurrent_layer_bytes(head: GGUFFile, n_embd: int) -> int:
    """State of one recurrent layer and one sequence: short convolution and state matrix, float32."""
    shortconv = head.integer(".shortconv.l_cache")
    if shortconv:
        return 4 * n_embd * (shortconv - 1)
    inner, state = head.integer(".ssm.inner_size"), head.integer(".ssm.state_size")
    groups, kernel = head.integer(".ssm.group_count"), head.integer(".ssm.conv_kernel")
    return 4 * (max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner)
