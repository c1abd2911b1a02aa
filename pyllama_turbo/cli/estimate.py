"""`pyllama-turbo estimate`: memory and the largest context, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from .. import kv
from ..errors import UnsupportedError
from ..kv_fit import fits
from ..kv_fit import plan as check_types
from ..memory import CELL_STEP, MAX_N_CTX
from ..models import resolve
from ..options import ContextOptions, ModelOptions, build, parse_size
from ..shape import ModelShape, model_shape
from .flags import GroupedCommand, ParamType, given, json_option, model_option, option_flags
from .output import note, print_json, print_table, size

if TYPE_CHECKING:
    from ..planning import MemoryEstimate

# What memory depends on; the other options do not matter here.
USED = (
    "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "kv", "type_k", "type_v", "swa_full", "kv_unified", "flash_attn",
    "offload_kqv", "n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "load_mode", "override_tensor",
    "use_extra_bufts",
)  # fmt: skip
_BASE = 8192  # tokens; twice this is planned too, and the straight line between them continued


def _not_used() -> tuple[str, ...]:
    from ..options import specs

    every = (*specs(ContextOptions), *specs(ModelOptions))
    return tuple(spec.name for spec in every if spec.name not in USED)


class MemorySize(ParamType):
    """Bytes as 8000000000, 8G or 7.5G; the units are 1024-based."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The size in bytes, an int as it is; anything that is no size is a usage error."""
        if isinstance(value, int):
            return value
        text = str(value).strip().upper().removesuffix("IB").removesuffix("B")
        factor = 1024 if text.endswith("G") else 1
        try:
            return parse_size(text.replace("G", "M") if factor > 1 else text) * factor
        except ValueError:
            self.fail(f"{value!r} is no size such as 8G or 500M", param, ctx)


@click.command("estimate", cls=GroupedCommand)
@model_option
@option_flags(ContextOptions, ModelOptions, leave_out=_not_used())
@click.option("--memory", type=MemorySize(), metavar="BYTES", help="Memory to fit into, as 24G [default: free now].")
@json_option
def command(model: str, memory: int | None, as_json: bool, **values: Any) -> None:
    """Compute weights, KV cache, buffers and the largest context for each KV type, before anything is loaded.

    The native library plans them without allocating, so the numbers are what a context then takes. With --kv (or -ctk,
    -ctv) only that choice is shown, and the exit code is 1 if it does not fit into the memory.
    """
    from ..planning import Planner, free_bytes

    options = given(values, ContextOptions)
    path = resolve(model)
    shape = model_shape(path)
    pairs = _pairs(shape, options)
    free = {"all": memory} if memory is not None else free_bytes()
    layout = {name: value for name, value in options.items() if name not in ("n_ctx", "kv", "type_k", "type_v")}
    with Planner(path, build(ModelOptions, given(values, ModelOptions))) as planner:
        rows = []
        for pair in pairs:
            check_types(shape, *pair)
            plan = partial(planner.estimate, kv=pair, **layout)
            rows.append(_row(pair, plan, options.get("n_ctx", 4096), free))
    _show(shape, rows, free, as_json)
    chosen = any(key in options for key in ("kv", "type_k", "type_v"))
    if chosen and rows[0]["fits"] is False:
        raise click.exceptions.Exit(1)


def _pairs(shape: ModelShape, options: dict[str, Any]) -> list[tuple[str, str]]:
    chosen = {key: options[key] for key in ("kv", "type_k", "type_v") if key in options}
    if chosen:
        return [kv.parse(**chosen)]
    found = [(r.kind.name, r.kind.name) for r in fits(shape) if r.stored is not None]
    if not found:
        raise UnsupportedError("this model has no KV cache: its memory does not depend on a KV type")
    return found


Plan = Callable[[int], "MemoryEstimate"]


def _over(need: MemoryEstimate, free: Mapping[str, int]) -> dict[str, int]:
    """Bytes by device, for the devices whose free memory is known; "all" counts everything."""
    sizes = {"all": need.total} if "all" in free else need.by_device()
    return {device: size for device, size in sizes.items() if device in free}


def _largest(plan: Plan, free: Mapping[str, int]) -> int:
    """The largest context that fits, in tokens, or 0. Memory grows nearly in a straight line, which is continued."""
    low, high = (_over(plan(n), free) for n in (_BASE, 2 * _BASE))
    slopes = {device: (high[device] - low.get(device, 0)) / _BASE for device in high}
    rooms = [_BASE + (free[d] - low.get(d, 0)) / slope for d, slope in slopes.items() if slope > 0]
    n = min([MAX_N_CTX, *map(int, rooms)]) // CELL_STEP * CELL_STEP
    while 0 < n < MAX_N_CTX:
        if all(size <= free[device] for device, size in _over(plan(n), free).items()):
            return n
        n = (n * 63 // 64) // CELL_STEP * CELL_STEP
    return max(n, 0)


def _row(pair: tuple[str, str], plan: Plan, n_ctx: int, free: Mapping[str, int]) -> dict[str, Any]:
    need = plan(n_ctx)
    sizes = _over(need, free)
    return {
        "type_k": pair[0],
        "type_v": pair[1],
        "n_ctx": need.n_ctx,
        "weights_bytes": need.weights,
        "kv_bytes": need.cache,
        "compute_bytes": need.compute,
        "total_bytes": need.total,
        "devices": need.by_device(),
        "fits": all(size <= free[device] for device, size in sizes.items()) if sizes else None,
        "largest_n_ctx": _largest(plan, free) if sizes else None,
    }


def _show(shape: ModelShape, rows: list[dict[str, Any]], free: Mapping[str, int], as_json: bool) -> None:
    if as_json:
        print_json({"name": shape.name, "n_ctx_train": shape.n_ctx_train, "free_bytes": free, "estimates": rows})
        return
    first = rows[0]
    click.echo(f"{shape.name}: weights {size(first['weights_bytes'])}, trained for {shape.n_ctx_train:,} tokens\n")
    table = []
    for row in rows:
        name = row["type_k"] if row["type_k"] == row["type_v"] else f"{row['type_k']}/{row['type_v']}"
        largest = row["largest_n_ctx"]
        shown = None if largest is None else "no limit" if largest >= MAX_N_CTX else f"{largest:,}"
        verdict = {True: "yes", False: "no", None: None}[row["fits"]]
        table.append(
            (name, size(row["kv_bytes"]), size(row["compute_bytes"]), size(row["total_bytes"]), verdict, shown)
        )
    print_table(("KV", f"CACHE @ {first['n_ctx']:,}", "COMPUTE", "TOTAL", "FITS", "LARGEST CONTEXT"), table)
    known = ", ".join(f"{size(n)}" if d == "all" else f"{d} {size(n)}" for d, n in free.items())
    note(f"\nmemory: {known or 'unknown on this system'}")
