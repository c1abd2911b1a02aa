"""The phases of a step, and which kernel or operation belongs to which.

The phases are those of the decode lever map, so that a profile made here can be laid beside one made elsewhere. The
first rule that matches decides; what none matches is "other", listed by name in every table so that it does not hide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["GAP", "PHASES", "Phase", "kernel_phase", "operation_phase", "short_name"]

GAP = "gap"


@dataclass(frozen=True)
class Phase:
    """One phase: its key, its name in tables, and what moves it."""

    key: str
    name: str
    lever: str


PHASES = (
    Phase("experts", "FFN and experts (weights)", "fewer weight bits; several tokens a pass (drafts); fused up+gate"),
    Phase("matmul", "other weight matmul", "fewer weight bits; several tokens a pass (drafts)"),
    Phase("kv_read", "attention: K/V read", "fewer cache bits; a kernel that unpacks once per KV head"),
    Phase("combine", "attention: combine, fix-up", "fewer splits of the cache; fused into the attention kernel"),
    Phase("kv_write", "K/V encode and write", "scalar instead of trellis type; one launch for K and V"),
    Phase("copy", "copies and conversions", "types that attention reads directly, without lifting to f16"),
    Phase("rotate", "rotate (Hadamard)", "fused into write and attention"),
    Phase("rope", "RoPE", "fused with the K write"),
    Phase("elementwise", "norm, softmax, activation, add", "fused operations; CUDA graphs hide their launches"),
    Phase("rows", "embedding, rows, sort", "fused top-k of the experts"),
    Phase("recurrent", "recurrent state", "-"),
    Phase("other", "other", "-"),
    Phase(GAP, "gaps (nothing runs)", "CUDA graphs; fewer launches; less work between tokens"),
)

_KERNEL_RULES = tuple(
    (key, re.compile(pattern, re.IGNORECASE))
    for key, pattern in (
        ("kv_write", r"write_(scalar|trellis)_kernel|k_set_rows|turbo\w*(write|encode)"),
        ("combine", r"flash_attn_(combine|stream_k_fixup|mask_to)|combine_kernel|turbo\w*combine"),
        ("kv_read", r"flash_attn|fattn|attend_kernel|turbo\w*attend|lightning_indexer"),
        ("rotate", r"fwht|hadamard|\bwht"),
        ("copy", r"read_kernel|^cpy_|\bcpy_|dequantize_|convert_unary|concat_|memcpy|k_repeat|turbo\w*(decode|lift)"),
        ("recurrent", r"ssm_|rwkv|gated_(delta|linear)|dsv4_hc|conv1d"),
        ("experts", r"vector_products_kernel|expert_mix_kernel"),
        ("experts", r"mul_mat_vec_q|mul_mat_q|mul_mat_vec_q_moe|moe_weighted|mm_ids_helper|mul_mat_f_ids"),
        ("matmul", r"float_products_kernel|mul_mat|gemm|gemv|nvjet|cutlass|cublas|splitk"),
        ("matmul", r"quantize_(q8_1|mmq)|k_compute_batched_ptrs"),
        ("rope", r"^(void )?(\w+::)*rope_|\brope_(norm|neox|multi|vision)"),
        ("rows", r"get_rows|argsort|top_?k|argmax|init_(indices|offsets)"),
        (
            "elementwise",
            r"norm_|soft_?max|unary|bin_bcast|scale_f32|softcap|glu|add_id|clamp|leaky|reduce_rows|sum|acc_|fill|memset|tri",
        ),
    )
)

_OPERATION_PHASE = {
    "FLASH_ATTN_EXT": "kv_read",
    "SET_ROWS": "kv_write",
    "ROPE": "rope",
    "GET_ROWS": "rows",
    "ARGSORT": "rows",
    "TOP_K": "rows",
    "CPY": "copy",
    "CONT": "copy",
    "DUP": "copy",
    "CONCAT": "copy",
    "REPEAT": "copy",
    "MUL_MAT_ID": "experts",
    "SSM_CONV": "recurrent",
    "SSM_SCAN": "recurrent",
    "RWKV_WKV6": "recurrent",
    "RWKV_WKV7": "recurrent",
    "GATED_LINEAR_ATTN": "recurrent",
    "GATED_DELTA_NET": "recurrent",
    "SOLVE_TRI": "recurrent",
    "MAP_CUSTOM3": "elementwise",  # keys less the centres of their runs
}
# Activations go by their own names: SILU, GELU_QUICK, SWIGLU, ...
_ELEMENTWISE = re.compile(
    r"NORM|SOFT_MAX|ADD|SUB|MUL$|DIV|SQR|SUM|SCALE|UNARY|CLAMP|SIN|COS|LOG|MEAN|TRI|FILL|ACC|DIAG|ARANGE|EXP|ABS|NEG|SGN"
    r"|LU(_|$)|TANH|SIGMOID|SOFTPLUS|STEP|FLOOR|CEIL|ROUND|TRUNC"
)
_NOT_COMPUTED = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}


def kernel_phase(name: str) -> str:
    """Phase of a CUDA kernel or device copy by its name."""
    for key, pattern in _KERNEL_RULES:
        if pattern.search(name):
            return key
    return "other"


def operation_phase(operation: str, tensor: str) -> str:
    """Phase of a ggml operation (such as "MUL_MAT") that computes the named tensor (such as "ffn_up-3").

    "" for views, which compute nothing.
    """
    if operation in _NOT_COMPUTED:
        return ""
    if operation == "MUL_MAT":
        if "rot" in tensor or "hadamard" in tensor:
            return "rotate"
        if tensor.startswith(("kq", "kqv")) and not tensor.startswith("kqv_out"):
            return "kv_read"
        return "experts" if tensor.startswith("ffn") else "matmul"
    if operation in _OPERATION_PHASE:
        return _OPERATION_PHASE[operation]
    return "elementwise" if _ELEMENTWISE.search(operation) else "other"


def short_name(kernel: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    text = kernel.removeprefix("void ").split("(")[0]
    depth, kept = 0, []
    for character in text:
        depth += character == "<"
        if depth == 0:
            kept.append(character)
        depth -= character == ">"
    return "".join(kept).strip() or kernel
