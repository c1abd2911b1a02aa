"""Options of a model, a context, sampling and generation. Each is defined here once.

Names are llama-cpp-python's in Python and llama.cpp's on the command line; defaults are llama.cpp's. Objects are
frozen: `dataclasses.replace` makes a changed copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _option_values as _values
from ._option_spec import OptionSpec, build, flag_value, option, parse_size, specs, suggest

__all__ = [
    "ContextOptions",
    "GenerationOptions",
    "ModelOptions",
    "OptionSpec",
    "SamplingOptions",
    "build",
    "flag_value",
    "parse_size",
    "specs",
    "split_keywords",
    "suggest",
]

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")


@dataclass(frozen=True)
class ModelOptions:
    """How a model file is loaded."""

    n_gpu_layers: int | str = option(
        "auto", "-ngl", "--gpu-layers", "--n-gpu-layers", kind="any", parse=_values.gpu_layers, group="Model",
        help="Layers on the GPU: a number, auto (all if there is a GPU) or all.",
    )  # fmt: skip
    split_mode: str = option(
        "layer", "-sm", "--split-mode", kind="str", choices=("none", "layer", "row"), group="Model",
        help="How a model is spread over several GPUs.",
    )  # fmt: skip
    main_gpu: int = option(
        0, "-mg", "--main-gpu", kind="int", low=0, group="Model", help="GPU used with split mode none."
    )
    tensor_split: tuple[float, ...] = option(
        (),
        "-ts",
        "--tensor-split",
        kind="list",
        parse=_values.floats,
        group="Model",
        help="Share of each GPU, as in 3,1.",
    )
    load_mode: str = option(
        "auto", "-lm", "--load-mode", kind="str", group="Model",
        choices=("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
        help="How the file is read: mapped, read, locked into RAM, or by direct I/O.",
    )  # fmt: skip
    override_tensor: str = option(
        "", "-ot", "--override-tensor", kind="str", group="Model",
        help="Placement of tensors by name: pattern=buffer,pattern=buffer.",
    )  # fmt: skip
    use_extra_bufts: bool = option(
        True, "--repack/--no-repack", kind="bool", group="Model", help="Allow repacked weight layouts on the CPU."
    )
    check_tensors: bool = option(
        False, "--check-tensors", kind="bool", group="Model", help="Validate every tensor while loading."
    )
    lora: tuple[tuple[str, float], ...] = option(
        (), "--lora", kind="list", parse=_values.loras, group="Model",
        help="LoRA adapter, as path or path:scale; may be given several times.",
    )  # fmt: skip
    vocab_only: bool = option(False, kind="bool", group="Model", help="Load the tokenizer and metadata only.")
    load_mtp: bool = option(False, kind="bool", group="Model", help="Load the multi-token-prediction layers.")


@dataclass(frozen=True)
class ContextOptions:
    """A context: its KV cache, batches, threads and RoPE."""

    n_ctx: int = option(
        4096, "-c", "--ctx-size", kind="size", low=0, high=2**31 - 1, group="Context",
        help="Tokens the context holds, all sequences together; 0 = as trained.",
    )  # fmt: skip
    n_batch: int = option(
        2048, "-b", "--batch-size", kind="size", low=1, high=2**31 - 1, group="Context",
        help="Tokens one decode call takes at most.",
    )  # fmt: skip
    n_ubatch: int = option(
        512, "-ub", "--ubatch-size", kind="size", low=1, high=2**31 - 1, group="Context",
        help="Tokens computed at once.",
    )  # fmt: skip
    n_seq_max: int = option(
        1, "-np", "--parallel", kind="int", low=1, high=256, group="Context", help="Sequences the context holds."
    )
    n_outputs_max: int | None = option(
        None, kind="int", low=1, group="Context",
        help="Rows of logits one decode call gives at most (default: 64, or n_batch with logits_all or embeddings).",
    )  # fmt: skip
    logits_all: bool = option(False, kind="bool", group="Context", help="Make room for the logits of every token.")
    n_threads: int = option(
        0, "-t", "--threads", kind="int", low=0, high=512, group="Context",
        help="Threads for one token; 0 = physical cores.",
    )  # fmt: skip
    n_threads_batch: int = option(
        0, "-tb", "--threads-batch", kind="int", low=0, high=512, group="Context",
        help="Threads for several tokens; 0 = as --threads.",
    )  # fmt: skip
    kv: str | tuple[str, str] | None = option(
        None, "-kv", "--kv", kind="any", group="KV cache",
        help="KV cache types, as turbo3 or K/V (q8_0/turbo3); short for --cache-type-k and --cache-type-v.",
    )  # fmt: skip
    type_k: str | None = option(
        None, "-ctk", "--cache-type-k", kind="any", group="KV cache", help="KV cache type of the keys."
    )
    type_v: str | None = option(
        None, "-ctv", "--cache-type-v", kind="any", group="KV cache", help="KV cache type of the values."
    )
    k_center: str = option(
        "auto", "--k-center", kind="str", group="KV cache",
        help="Store compressed keys less their mean: auto (measured once a model), bias (the model's K bias), "
        "off, or a file.",
    )  # fmt: skip
    calibrate: bool = option(
        True, "--calibrate/--no-calibrate", kind="bool", group="KV cache",
        help="With --k-center auto, measure the mean keys when the model has none yet.",
    )  # fmt: skip
    flash_attn: str = option(
        "auto", "-fa", "--flash-attn", kind="any", parse=_values.flash_attn, choices=("on", "off", "auto"),
        group="KV cache", help="Flash attention; compressed KV types need it.",
    )  # fmt: skip
    offload_kqv: bool = option(
        True,
        "-kvo/-nkvo",
        "--kv-offload/--no-kv-offload",
        kind="bool",
        group="KV cache",
        help="Keep the KV cache with its layer's GPU.",
    )
    swa_full: bool = option(
        False, "--swa-full", kind="bool", group="KV cache", help="Sliding-window layers keep the whole context."
    )
    kv_unified: bool = option(
        False,
        "-kvu/-no-kvu",
        "--kv-unified/--no-kv-unified",
        kind="bool",
        group="KV cache",
        help="One cache for all sequences instead of equal parts.",
    )
    lora_scales: tuple[float, ...] | None = option(
        None, kind="any", parse=_values.scales, group="Context",
        help="Scales of the model's LoRA adapters in this context (default: those the model was opened with).",
    )  # fmt: skip
    op_offload: bool = option(
        True, "--op-offload/--no-op-offload", kind="bool", group="Context",
        help="Run operations on host weights on the GPU.",
    )  # fmt: skip
    embeddings: bool = option(False, kind="bool", group="Context", help="Compute embeddings.")
    pooling_type: str = option(
        "model", kind="str", choices=("model", "none", "mean", "cls", "last", "rank"), group="Context",
        help="How token embeddings become one.",
    )  # fmt: skip
    rope_scaling: str = option(
        "model", "--rope-scaling", kind="str", choices=("model", "none", "linear", "yarn", "longrope"), group="RoPE",
        help="RoPE scaling method.",
    )  # fmt: skip
    rope_freq_base: float = option(
        0.0, "--rope-freq-base", kind="float", low=0, group="RoPE", help="0 = from the model."
    )
    rope_freq_scale: float = option(
        0.0, "--rope-freq-scale", kind="float", low=0, group="RoPE", help="0 = from the model."
    )
    yarn_ext_factor: float = option(
        -1.0, "--yarn-ext-factor", kind="float", group="RoPE", help="Negative = from the model."
    )
    yarn_attn_factor: float = option(
        -1.0, "--yarn-attn-factor", kind="float", group="RoPE", help="YaRN attention factor."
    )
    yarn_beta_fast: float = option(-1.0, "--yarn-beta-fast", kind="float", group="RoPE", help="YaRN low correction.")
    yarn_beta_slow: float = option(-1.0, "--yarn-beta-slow", kind="float", group="RoPE", help="YaRN high correction.")
    yarn_orig_ctx: int = option(0, "--yarn-orig-ctx", kind="size", low=0, group="RoPE", help="0 = from the model.")
    check_memory: bool = option(
        True, kind="bool", group="Context", help="Refuse a context that would not fit into free memory."
    )


@dataclass(frozen=True)
class SamplingOptions:
    """The sampler chain, upstream's engine and order."""

    temperature: float = option(
        0.8, "--temp", "--temperature", kind="float", group="Sampling", help="Temperature; 0 takes the likeliest token."
    )
    top_k: int = option(40, "--top-k", kind="int", group="Sampling", help="Keep the k likeliest tokens; 0 = all.")
    top_p: float = option(0.95, "--top-p", kind="float", low=0, high=1, group="Sampling", help="Nucleus; 1 = off.")
    min_p: float = option(
        0.05, "--min-p", kind="float", low=0, high=1, group="Sampling",
        help="Drop tokens below this share of the likeliest; 0 = off.",
    )  # fmt: skip
    typical_p: float = option(
        1.0, "--typical", "--typical-p", kind="float", low=0, high=1, group="Sampling", help="1 = off."
    )
    top_n_sigma: float = option(-1.0, "--top-nsigma", "--top-n-sigma", kind="float", group="Sampling", help="-1 = off.")
    xtc_probability: float = option(
        0.0, "--xtc-probability", kind="float", low=0, high=1, group="Sampling", help="0 = off."
    )
    xtc_threshold: float = option(0.1, "--xtc-threshold", kind="float", low=0, group="Sampling", help="XTC threshold.")
    dynatemp_range: float = option(
        0.0, "--dynatemp-range", kind="float", low=0, group="Sampling", help="Dynamic temperature range; 0 = off."
    )
    dynatemp_exponent: float = option(1.0, "--dynatemp-exp", kind="float", group="Sampling", help="Its exponent.")
    repeat_last_n: int = option(
        64, "--repeat-last-n", kind="int", low=0, group="Sampling", help="Tokens the penalties look back at; 0 = off."
    )
    repeat_penalty: float = option(1.0, "--repeat-penalty", kind="float", group="Sampling", help="1 = off.")
    frequency_penalty: float = option(0.0, "--frequency-penalty", kind="float", group="Sampling", help="0 = off.")
    presence_penalty: float = option(0.0, "--presence-penalty", kind="float", group="Sampling", help="0 = off.")
    dry_multiplier: float = option(0.0, "--dry-multiplier", kind="float", low=0, group="Sampling", help="0 = off.")
    dry_base: float = option(1.75, "--dry-base", kind="float", group="Sampling", help="DRY base.")
    dry_allowed_length: int = option(
        2, "--dry-allowed-length", kind="int", low=0, group="Sampling", help="Repetitions DRY leaves alone, in tokens."
    )
    dry_penalty_last_n: int = option(
        64, "--dry-penalty-last-n", kind="int", low=0, group="Sampling", help="Tokens DRY looks back at; 0 = off."
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        (),
        "--dry-sequence-breaker",
        kind="list",
        parse=_values.texts,
        group="Sampling",
        help="Texts that end a repetition.",
    )
    mirostat: int = option(0, "--mirostat", kind="int", low=0, high=2, group="Sampling", help="0 = off, 1, 2.")
    mirostat_tau: float = option(5.0, "--mirostat-ent", kind="float", group="Sampling", help="Target entropy.")
    mirostat_eta: float = option(0.1, "--mirostat-lr", kind="float", group="Sampling", help="Learning rate.")
    adaptive_target: float = option(
        -1.0, "--adaptive-target", kind="float", high=1, group="Sampling", help="Probability aimed at; negative = off."
    )
    adaptive_decay: float = option(
        0.9, "--adaptive-decay", kind="float", low=0, high=0.99, group="Sampling", help="Memory of adaptive-p."
    )
    min_keep: int = option(0, kind="int", low=0, group="Sampling", help="Candidates every filter leaves at least.")
    seed: int | None = option(
        None, "-s", "--seed", kind="int", low=-1, high=2**32 - 1, group="Sampling",
        help="Seed; not given or -1 = drawn, and reported.",
    )  # fmt: skip
    samplers: tuple[str, ...] = option(
        SAMPLERS, "--samplers", kind="list", parse=_values.order, group="Sampling", help="The chain, in this order."
    )
    logit_bias: tuple[tuple[int, float], ...] = option(
        (), "-l", "--logit-bias", kind="any", parse=_values.bias, group="Sampling",
        help="Token and what is added to its logit, as 29905-2.5; 29905-inf forbids it.",
    )  # fmt: skip
    ignore_eos: bool = option(
        False, "--ignore-eos", kind="bool", group="Sampling", help="Never choose a token that ends the generation."
    )
    grammar: str | None = option(
        None, "--grammar", kind="str", group="Sampling", help="GBNF grammar the output follows."
    )
    json_schema: str | None = option(
        None, "-j", "--json-schema", kind="any", parse=_values.schema, group="Sampling",
        help="JSON schema the output follows; {} for any JSON object.",
    )  # fmt: skip


@dataclass(frozen=True)
class GenerationOptions:
    """One generation."""

    max_tokens: int | None = option(
        None, "-n", "--predict", "--n-predict", kind="size", low=-1, group="Generation",
        help="Tokens to generate at most; not given or -1 = until the context is full.",
        parse=lambda v: -1 if str(v) == "-1" else parse_size(v),
    )  # fmt: skip
    stop: tuple[str, ...] = option(
        (),
        "-r",
        "--stop",
        "--reverse-prompt",
        kind="list",
        parse=_values.texts,
        group="Generation",
        help="Texts that end the generation; not shown.",
    )
    echo: bool = option(
        False,
        "--echo",
        "--display-prompt/--no-display-prompt",
        kind="bool",
        group="Generation",
        help="Emit the prompt first.",
    )
    logprobs: int | None = option(
        None, kind="any", parse=_values.count, group="Generation",
        help="Report log probabilities: of the token, and of this many likeliest; with echo, of the prompt too.",
    )  # fmt: skip
    special: bool = option(
        False, "-sp", "--special", kind="bool", group="Generation", help="Show special tokens in the text."
    )
    reuse: bool = option(
        True, "--cache-prompt/--no-cache-prompt", kind="bool", group="Generation",
        help="Keep what the cache already holds of the prompt.",
    )  # fmt: skip
    context_shift: bool = option(
        False, "--context-shift/--no-context-shift", kind="bool", group="Generation",
        help="Drop the oldest tokens when the context is full, where the cache can move positions.",
    )  # fmt: skip
    n_keep: int = option(
        0, "--keep", kind="size", low=0, group="Generation", help="Tokens of the prompt a context shift keeps."
    )


def split_keywords(values: Mapping[str, Any], *classes: type) -> list[Any]:
    """One options object per class from a common set of keywords, each to the class that knows it.

    Raises:
        UnknownOptionError: no class knows a keyword; the suggestion considers all of them.
        OptionError: as `build`.
    """
    names = {cls: {spec.name for spec in specs(cls)} for cls in classes}
    every = tuple(sorted(set().union(*names.values())))
    parts: list[dict[str, Any]] = [{} for _ in classes]
    for name, value in values.items():
        home = next((i for i, cls in enumerate(classes) if name in names[cls]), 0)
        parts[home][name] = value
    return [build(cls, part, also=every) for cls, part in zip(classes, parts)]
