"""Hyperparameters that the native library would abort on, refused with a reason before it sees the file.

llama.cpp checks many numbers of a file with assertions: while loading, and again when it builds the graph of a context.
An assertion ends the process. The rules here say the same in advance, by architecture where they differ; sizes that
contradict the tensors are left to the library, which reports those as errors.
"""

from __future__ import annotations

import math
from typing import NoReturn

from .errors import GGUFError
from .gguf import GGUFFile
from .shape import cache_owners, layer_windows

__all__ = ["check_hyperparameters"]

MAX_LAYERS = 512
MAX_EXPERTS = 1024
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_GATING = range(5)
_POOLING = range(-1, 5)

# Graphs that rotate whole heads only.
_WHOLE_HEAD_ROPE = frozenset(
    (
        "apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "cohere2moe", "dbrx", "deci",
        "deepseek", "dots1", "dream", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe", "exaone4", "falcon",
        "gpt-oss", "granite", "granite_swa", "granitemoe", "graniteswitch", "grok", "grovemoe", "hunyuan-dense",
        "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2", "jais2", "llada", "llada-moe", "llama", "llama-embed",
        "llama4", "maincoder", "mellum", "minicpm", "mistral3", "olmo", "olmo2", "olmoe", "orion", "paddleocr",
        "pangu-embedded", "plamo", "pockettts", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3tts",
        "qwen3vl", "qwen3vlmoe", "rnd1", "seed_oss", "smallthinker", "smollm3", "starcoder2", "talkie", "xverse",
    )
)  # fmt: skip
# Graphs whose keys and values have one head size; those above are of that kind too.
_ONE_HEAD_SIZE = _WHOLE_HEAD_ROPE | frozenset(
    (
        "afmoe", "bailingmoe2", "bert", "bitnet", "bloom", "chatglm", "cohere2", "command-r", "dflash", "eagle3",
        "eurobert", "glm4", "glm4moe", "gpt2", "gptneox", "granitehybrid", "jais", "jina-bert-v2", "jina-bert-v3",
        "laguna", "lfm2", "lfm2moe", "maple", "minimax-01", "minimax-m2", "minimax-m3", "modern-bert", "mpt",
        "muse-glimmer", "nanbeige", "nemotron", "nemotron_h", "nemotron_h_moe", "neo-bert", "nomic-bert",
        "nomic-bert-moe", "openelm", "phi2", "phi3", "phimoe", "qwen", "qwen35", "qwen35moe", "qwen3next",
        "qwen4exp", "refact", "spark2_5", "stablelm", "starcoder", "t5", "t5encoder",
    )
)  # fmt: skip
# Graphs whose queries are as wide as the residual stream.
_QUERY_AS_EMBEDDING = frozenset(
    (
        "arctic", "baichuan", "bailingmoe2", "bert", "bloom", "chameleon", "codeshell", "cohere2", "command-r", "dbrx",
        "deepseek", "dream", "eurobert", "falcon", "gpt2", "gptneox", "grok", "internlm2", "jais", "jina-bert-v2",
        "jina-bert-v3", "lfm2", "lfm2moe", "llada-moe", "mpt", "nemotron", "neo-bert", "nomic-bert", "nomic-bert-moe",
        "olmo", "olmo2", "olmoe", "orion", "phi2", "phi3", "phimoe", "plamo", "pockettts", "qwen2", "qwen2moe",
        "qwen2vl", "stablelm", "starcoder", "starcoder2", "xverse",
    )
)  # fmt: skip


def check_hyperparameters(head: GGUFFile) -> None:
    """Check the metadata of a model's first file.

    Raises:
        GGUFError: a number for which the library would abort; the message has it, its key, and what would do.
    """
    _check_layers(head)
    _check_experts(head)
    _check_heads(head)
    _check_rope(head)
    _check_shared_caches(head)
    for key in ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon"):
        epsilon = head.get(f".attention.{key}")
        if isinstance(epsilon, float) and not (math.isfinite(epsilon) and epsilon >= 0):
            _fail(head, f".attention.{key}", epsilon, "a number from 0 on")
    _check_one_of(head, ".pooling_type", _POOLING)
    if head.arch in ("lfm2", "lfm2moe") and head.integer(".shortconv.l_cache") < 2:
        _fail(head, ".shortconv.l_cache", head.integer(".shortconv.l_cache"), "2 at least")


def _fail(head: GGUFFile, key: str, value: object, expected: str) -> NoReturn:
    name = head.arch + key
    raise GGUFError(
        f"{head.path}: {name} is {value!r}, {expected} is possible for {head.arch}: llama.cpp would abort",
        asked=value,
        limit=expected,
        hint="the file is damaged, or was converted for another program",
    )


def _numbers(head: GGUFFile, key: str) -> tuple[int, ...]:
    """The integers under a key that holds one or an array of them."""
    value = head.get(key)
    values = value if isinstance(value, tuple) else (value,)
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))


def _check_one_of(head: GGUFFile, key: str, allowed: range) -> None:
    value = head.integer(key, allowed[0])
    if value not in allowed:
        _fail(head, key, value, f"{allowed[0]} to {allowed[-1]}")


def _check_layers(head: GGUFFile) -> None:
    n_layer = head.require(".block_count", MAX_LAYERS)
    if head.integer(".nextn_predict_layers") not in range(n_layer + 1):
        _fail(head, ".nextn_predict_layers", head.integer(".nextn_predict_layers"), f"0 to {n_layer}")


def _check_experts(head: GGUFFile) -> None:
    n_expert, groups = head.integer(".expert_count"), head.integer(".expert_group_count")
    if head.arch in ("hunyuan_vl", "hunyuan-dense") and n_expert <= 1:
        return
    if n_expert not in range(MAX_EXPERTS + 1):
        _fail(head, ".expert_count", n_expert, f"0 to {MAX_EXPERTS}")
    used = max(_numbers(head, ".expert_used_count"), default=0)
    if used not in range(min(n_expert, 1), n_expert + 1):
        _fail(head, ".expert_used_count", used, f"{min(n_expert, 1)} to {n_expert}")
    if groups not in range(max(n_expert, 1)) or (groups > 1 and n_expert % groups):
        _fail(head, ".expert_group_count", groups, f"a divisor of {n_expert}, below it,")
    if groups > 1 and head.integer(".expert_group_used_count") not in range(1, groups):
        _fail(head, ".expert_group_used_count", head.integer(".expert_group_used_count"), f"1 to {groups - 1}")
    _check_one_of(head, ".expert_gating_func", _GATING)


def _check_heads(head: GGUFFile) -> None:
    n_layer = head.require(".block_count", MAX_LAYERS)
    n_heads = head.per_layer(".attention.head_count", n_layer)
    n_heads_kv = head.per_layer(".attention.head_count_kv", n_layer, -1)
    for n, n_kv in zip(n_heads, n_heads_kv):
        if n < 0 or (n_kv > 0 and n % n_kv):
            _fail(head, ".attention.head_count_kv", n_kv, f"a divisor of the {n} query heads")
    k, v = _head_dims(head, n_heads[0])
    if n_heads[0] > 0 and head.arch in _ONE_HEAD_SIZE and k != v:
        _fail(head, ".attention.value_length", v, f"the length of a key, {k},")
    n_embd = head.require(".embedding_length")
    for n in n_heads if head.arch in _QUERY_AS_EMBEDDING else ():
        if n > 0 and n * k != n_embd:
            _fail(head, ".attention.head_count", n, f"{n_embd} values in heads of {k}: nothing else")


def _head_dims(head: GGUFFile, n_head: int) -> tuple[int, int]:
    """Values of one key and one value, as the library derives them."""
    default = head.require(".embedding_length") // max(n_head, 1)
    return head.integer(".attention.key_length", default), head.integer(".attention.value_length", default)


def _check_rope(head: GGUFFile) -> None:
    scaling = head.get(".rope.scaling.type")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALING:
        _fail(head, ".rope.scaling.type", scaling, f"one of {', '.join(_ROPE_SCALING)}")
    n_heads = head.per_layer(".attention.head_count", head.require(".block_count", MAX_LAYERS))
    if n_heads[0] <= 0:
        return
    k, _ = _head_dims(head, n_heads[0])
    n_rot = head.integer(".rope.dimension_count", k)
    if head.arch in _WHOLE_HEAD_ROPE and n_rot != k:
        _fail(head, ".rope.dimension_count", n_rot, f"the length of a head, {k},")
    k_window = head.integer(".attention.key_length_swa", k)
    for key, dim in ((".rope.dimension_count", k), (".rope.dimension_count_swa", k_window)):
        value = head.integer(key, dim)
        if head.get(".attention.key_length_mla") is None and (value % 2 or not 2 <= value <= dim):
            _fail(head, key, value, f"an even number from 2 to {dim}")


def _check_shared_caches(head: GGUFFile) -> None:
    """Layers that use another's cache: the last global and the last sliding one that have their own must be its two."""
    n_layer = head.require(".block_count", MAX_LAYERS)
    first = cache_owners(head, n_layer)
    if first == n_layer:
        return
    windows = layer_windows(head, n_layer)
    for window in windows[max(first, 0) :]:
        source = first - (2 if window else 1)
        if source < 0 or bool(windows[source]) != bool(window):
            _fail(head, ".attention.shared_kv_layers", n_layer - first, "a number that leaves a layer of each kind")
