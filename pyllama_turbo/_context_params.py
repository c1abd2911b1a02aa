"""From `ContextOptions` to native parameters, and the check that a context would fit into memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import errors
from ._cpu import default_threads
from .devices import devices
from .memory import KVPlan, compute_bytes, free_host_bytes, kv_bytes, mask_cells

if TYPE_CHECKING:
    from ._native import Binding
    from .kv import KVType
    from .model import Model
    from .options import ContextOptions

__all__ = ["as_ids", "check_memory", "flash_hint", "native_params", "outputs_max"]

_CLEAR = 0.5  # a context that takes less than this of what is free fits, however coarse the formula
DEFAULT_OUTPUTS = 64  # rows of logits: enough for sequences and for verifying drafts, small against n_batch x n_vocab
_FLASH = {"auto": -1, "off": 0, "on": 1}
_POOLING = {"model": -1, "none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_ROPE = {"model": -1, "none": 0, "linear": 1, "yarn": 2, "longrope": 3}
_COPIED = ("n_batch", "n_ubatch", "n_seq_max", "embeddings", "offload_kqv", "op_offload", "swa_full", "kv_unified")
_FROM_MODEL = {
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
}  # option values that leave the native default alone


def outputs_max(options: ContextOptions) -> int:
    """Rows of logits one decode call may give."""
    if options.embeddings or options.logits_all:
        return options.n_batch
    wanted = options.n_outputs_max or max(DEFAULT_OUTPUTS, options.n_seq_max)
    return min(wanted, options.n_batch)


def native_params(
    b: Binding, options: ContextOptions, n_ctx: int, types: tuple[str, str], k_layers: Mapping[int, str] | None = None
) -> tuple[Any, list[Any]]:
    """The native parameters, and what must stay alive while they are used. `k_layers`: layers with another K type."""
    ffi = b.ffi
    params = ffi.new("turbo_context_params *")
    b.lib.turbo_context_params_init(params)
    keep = [ffi.new("char[]", name.encode()) for name in types]
    params.type_k, params.type_v = keep
    if k_layers:
        keep.append(ffi.new("char[]", ",".join(f"{i}={name}" for i, name in k_layers.items()).encode()))
        params.type_k_layers = keep[-1]
    params.n_ctx = n_ctx
    for name in _COPIED:
        setattr(params, name, getattr(options, name))
    params.n_outputs_max = outputs_max(options)
    params.n_threads = options.n_threads or default_threads()
    params.n_threads_batch = options.n_threads_batch or params.n_threads
    params.flash_attn = _FLASH[options.flash_attn]
    params.pooling_type = _POOLING[options.pooling_type]
    params.rope_scaling = _ROPE[options.rope_scaling]
    for name, untouched in _FROM_MODEL.items():
        value = getattr(options, name)
        if value != untouched:
            setattr(params, name, value)
    params.no_perf = False
    params.poll = b.lib.turbo_py_poll
    return params, keep


def _gib(n: float) -> str:
    return f"{n / 2**30:,.2f} GiB"


def _device_shares(model: Model, options: ContextOptions) -> dict[str, float]:
    """Share of the KV layers each device holds; the host's is called CPU."""
    owners = [layer for layer in model.layers if layer.has_kv]
    if not owners or not options.offload_kqv:
        return {"CPU": 1.0}
    shares: dict[str, float] = {}
    for layer in owners:
        shares[layer.device] = shares.get(layer.device, 0.0) + 1 / len(owners)
    return shares


def check_memory(model: Model, options: ContextOptions, n_ctx: int, types: tuple[KVType, KVType]) -> None:
    """Refuse a context that would not fit into the free memory of the devices that hold its cache.

    A quick formula decides the clear cases; where it comes near the limit, the library plans the context exactly.

    Raises:
        MemoryLimitError: with the arithmetic, and the number of tokens that would fit.
    """
    n_seq = 1 if options.kv_unified else options.n_seq_max
    plan = KVPlan(types[0], types[1], n_seq=n_seq, n_ubatch=options.n_ubatch, swa_full=options.swa_full)
    shape = model.shape
    if not shape.layers:
        return
    rows = min(outputs_max(options), options.n_ubatch)

    def parts(tokens: int) -> tuple[int, int]:
        compute = compute_bytes(replace(shape, n_vocab=0), options.n_ubatch, mask_cells(shape, plan, tokens))
        return kv_bytes(shape, plan, tokens).total, compute + 4 * rows * shape.n_vocab

    cache, compute = parts(n_ctx)
    free_of = {d.name: d.free_bytes for d in devices() if d.kind != "cpu"}
    host = free_host_bytes()
    for name, share in _device_shares(model, options).items():
        free = free_of.get(name, host)
        if free is None or int(cache * share) + compute <= free * _CLEAR:
            continue
        fits = _largest(n_ctx, parts, share, free)
        held, computing = _planned(model, replace(options, n_ctx=n_ctx), name) or (int(cache * share), compute)
        wanted = held + computing
        if wanted <= free:
            continue
        raise errors.MemoryLimitError(
            f"a context of {n_ctx:,} tokens does not fit: its {types[0].family}/{types[1].family} KV cache takes "
            f"{_gib(held)} on {name} ({len(shape.layers)} layers, "
            f"{kv_bytes(shape, plan, n_ctx).per_token:,} bytes a token) and computing {_gib(computing)}, "
            f"together {_gib(wanted)}; free are {_gib(free)}",
            asked=wanted,
            limit=free,
            hint=f"about {fits:,} tokens would fit; choose a smaller n_ctx or KV type, or pass check_memory=False",
        )


def _planned(model: Model, options: ContextOptions, device: str) -> tuple[int, int] | None:
    """Bytes of cache and of computing on a device, as the library plans them; None if the file is gone."""
    from .planning import Planner  # which makes its contexts with this module

    try:
        with Planner(model.path, model.options) as planner:
            rows = planner.plan(options).on(device)
    except (errors.ModelLoadError, errors.UnsupportedError):
        return None
    return sum(row.context_bytes for row in rows), sum(row.compute_bytes for row in rows)


def _largest(limit: int, parts: Callable[[int], tuple[int, int]], share: float, free: int) -> int:
    """The largest multiple of 256 below `limit` whose cache share and computing stay within `free`; 0 if none does."""
    low, high = 0, limit // 256
    while low < high:
        middle = (low + high + 1) // 2
        cache, compute = parts(middle * 256)
        low, high = (middle, high) if int(cache * share) + compute <= free else (low, middle - 1)
    return low * 256


def flash_hint(options: ContextOptions) -> str:
    """What to do about a refusal that flash attention would lift, or an empty text."""
    return "leave flash_attn at 'auto' or set it to 'on'" if options.flash_attn == "off" else ""


def as_ids(tokens: Sequence[int]) -> list[int]:
    """Whole numbers as a list. Raises OptionError if there are none, or one is no whole number."""
    if len(tokens) == 0:
        raise errors.OptionError("there are no tokens", hint="an empty prompt needs at least the BOS token")
    try:
        return [operator.index(t) for t in tokens]
    except TypeError as error:
        raise errors.OptionError(f"tokens must be whole numbers: {error}") from None
