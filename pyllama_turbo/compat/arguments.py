"""The constructor's keywords: llama-cpp-python's and this package's own, to options of a model and of a context."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._option_spec import build, option, parse_size, specs
from ..options import ContextOptions, ModelOptions
from .constants import DEFAULT_SEED, POOLING_TYPES, ROPE_SCALINGS, SPLIT_MODES, by_number, kv_type
from .offered import KEYWORDS, check


def _layers(value: Any) -> int | str:
    return "all" if value == -1 or (isinstance(value, int) and value >= 0x7FFFFFFF) else value


def _seed(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return None if value in (-1, DEFAULT_SEED) else value


def _path(value: Any) -> str | None:
    return None if value is None else os.fspath(value)


def _or_default(default: Any) -> Any:
    return lambda value: default if value is None else value


@dataclass(frozen=True)
class LlamaOptions:
    """What `Llama` takes beside the path; defaults are llama-cpp-python's unless the text says otherwise.

    Every field of `ModelOptions` and `ContextOptions` is taken as well: `kv`, `k_center`, `override_tensor`, ...
    """

    n_gpu_layers: int | str = option(0, kind="any", parse=_layers, help="Layers on the GPU; -1 or 'all': every layer.")
    split_mode: str = option(
        "layer", kind="any", parse=lambda v: by_number(SPLIT_MODES, v), help="none, layer or row, or its integer."
    )
    tensor_split: tuple[float, ...] = option((), kind="any", parse=_or_default(()), help="Share of each GPU.")
    use_mmap: bool = option(True, kind="bool", help="Map the file instead of reading it.")
    use_mlock: bool = option(False, kind="bool", help="Keep the model in RAM.")
    seed: int | None = option(None, kind="any", parse=_seed, help="Seed of the object; -1 or not given: drawn.")
    n_ctx: int = option(512, kind="size", parse=parse_size, help="Tokens the context holds; 0 = as trained.")
    n_batch: int = option(512, kind="size", help="Tokens of one decode call.")
    n_threads: int = option(0, kind="any", parse=_or_default(0), help="None: physical cores.")
    n_threads_batch: int = option(0, kind="any", parse=_or_default(0), help="None: as n_threads.")
    rope_scaling_type: str = option(
        "model", kind="any", parse=lambda v: by_number(ROPE_SCALINGS, -1 if v is None else v),
        help="none, linear, yarn or longrope, or its integer; -1: as the model says.",
    )  # fmt: skip
    pooling_type: str = option(
        "model", kind="any", parse=lambda v: by_number(POOLING_TYPES, v),
        help="none, mean, cls, last or rank, or its integer; -1: as the model says.",
    )  # fmt: skip
    embedding: bool = option(False, kind="bool", help="Compute embeddings.")
    flash_attn: Any = option("auto", kind="any", parse=_or_default("auto"), help="True, False or 'auto' (the default).")
    op_offload: bool = option(True, kind="any", parse=_or_default(True), help="Host operations on the GPU.")
    swa_full: bool = option(
        False, kind="any", parse=_or_default(False), help="Sliding-window layers keep the whole context."
    )
    last_n_tokens_size: int = option(64, kind="int", low=0, help="Tokens the penalties look back at.")
    lora_path: str | None = option(None, kind="any", parse=_path, help="A LoRA adapter.")
    lora_scale: float = option(1.0, kind="float", help="Its scale.")
    chat_format: str | None = option(None, kind="any", help="Name of a chat format; None: the model's own.")
    chat_template: str | None = option(None, kind="any", help="Jinja text of a chat template, instead of a name.")
    type_k: str | None = option(None, kind="any", parse=kv_type, help="Name of a KV type, or upstream's integer.")
    type_v: str | None = option(None, kind="any", parse=kv_type, help="Name of a KV type, or upstream's integer.")
    spm_infill: bool = option(False, kind="bool", help="Suffix before prefix when filling in.")
    no_perf: bool = option(False, kind="bool", help="Accepted, without effect: nothing is printed.")
    verbose: bool = option(False, kind="bool", help="Native log lines on stderr; False is this package's default.")


_RENAMED = {"rope_scaling_type": "rope_scaling", "embedding": "embeddings"}
_TO_MODEL = ("n_gpu_layers", "split_mode", "tensor_split")
_TO_CONTEXT = (
    "n_ctx", "n_batch", "n_threads", "n_threads_batch", "rope_scaling_type", "pooling_type", "embedding", "flash_attn",
    "op_offload", "swa_full", "type_k", "type_v",
)  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """Sorted keywords: for `Llama` itself, for `Model.open` and for `Model.context`."""

    options: LlamaOptions
    model: dict[str, Any]
    context: dict[str, Any]


def sort_arguments(keywords: Mapping[str, Any]) -> Arguments:
    """The constructor's keywords, checked and sorted.

    Raises:
        UnknownOptionError: a keyword that does not exist, with the closest names.
        OptionError: a value of the wrong kind.
        UnsupportedError: a keyword that llama-cpp-python has and this package has not.
    """
    values = dict(keywords)
    for name in KEYWORDS.keys() & values.keys():
        check(KEYWORDS, name, values.pop(name))
    own = {spec.name for spec in specs(LlamaOptions)}
    tables = {cls: {spec.name for spec in specs(cls)} - own for cls in (ModelOptions, ContextOptions)}
    rest = {cls: {n: values.pop(n) for n in [*values] if n in names} for cls, names in tables.items()}
    options = build(LlamaOptions, values, also=(*KEYWORDS, *tables[ModelOptions], *tables[ContextOptions]))
    return Arguments(
        options,
        {**_own(options, _TO_MODEL), **_load_mode(options, rest[ModelOptions]), **_adapter(options)}
        | rest[ModelOptions],
        _kv_choice(_own(options, _TO_CONTEXT) | rest[ContextOptions]),
    )


def _own(options: LlamaOptions, names: tuple[str, ...]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): getattr(options, name) for name in names}


def _load_mode(options: LlamaOptions, chosen: Mapping[str, Any]) -> dict[str, Any]:
    if "load_mode" in chosen or (options.use_mmap and not options.use_mlock):
        return {}
    if options.use_mlock:
        return {"load_mode": "mmap+mlock" if options.use_mmap else "mlock"}
    return {"load_mode": "none"}


def _adapter(options: LlamaOptions) -> dict[str, Any]:
    return {"lora": ((options.lora_path, options.lora_scale),)} if options.lora_path is not None else {}


def _kv_choice(context: dict[str, Any]) -> dict[str, Any]:
    """`kv` stands for both types: without a type given beside it, the defaults must not stand in its way."""
    return {name: value for name, value in context.items() if value is not None or name not in ("type_k", "type_v")}
