"""`pyllama-turbo estimate`: memory and the largest context, before anything is loaded."""

from __future__ import annotations

from typing import Any

import click

from .. import kv
from ..errors import UnsupportedError
from ..kv_fit import fits, plan
from ..memory import MAX_N_CTX, KVPlan, estimate, fit_n_ctx, free_host_bytes
from ..models import resolve
from ..options import ContextOptions, parse_size
from ..shape import ModelShape, model_shape
from .flags import GroupedCommand, ParamType, given, json_option, model_option, option_flags
from .output import note, print_json, print_table, size

# What memory depends on; the other context options do not matter here.
USED = ("n_ctx", "n_ubatch", "n_seq_max", "kv", "type_k", "type_v", "swa_full")


def _not_used() -> tuple[str, ...]:
    from ..options import specs

    return tuple(spec.name for spec in specs(ContextOptions) if spec.name not in USED)


class MemorySize(ParamType):
    """Bytes as 8000000000, 8G or 7.5G; the units are 1024-based."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
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
@option_flags(ContextOptions, leave_out=_not_used())
@click.option("--memory", type=MemorySize(), metavar="BYTES", help="Memory to fit into, as 24G [default: free now].")
@json_option
def command(model: str, memory: int | None, as_json: bool, **values: Any) -> None:
    """Compute weights, KV cache and the largest context for each KV type.

    With --kv (or -ctk, -ctv) only that choice is shown, and the exit code is 1 if it does not fit into the memory.
    """
    options = given(values, ContextOptions)
    shape = model_shape(resolve(model))
    n_ctx = options.get("n_ctx", 4096) or shape.n_ctx_train
    free = memory if memory is not None else free_host_bytes()
    pairs = _pairs(shape, options)
    layout = {
        "n_seq": options.get("n_seq_max", 1),
        "n_ubatch": options.get("n_ubatch", 512),
        "swa_full": options.get("swa_full", False),
    }
    rows = [_row(shape, pair, plan(shape, *pair, **layout), n_ctx, free) for pair in pairs]
    _show(shape, rows, n_ctx, free, as_json)
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


def _row(shape: ModelShape, pair: tuple[str, str], kv_plan: KVPlan, n_ctx: int, free: int | None) -> dict[str, Any]:
    need = estimate(shape, kv_plan, n_ctx)
    largest = fit_n_ctx(shape, kv_plan, free) if free is not None else None
    return {
        "type_k": pair[0],
        "type_v": pair[1],
        "n_ctx": need.n_ctx,
        "weights_bytes": need.weights,
        "kv_bytes": need.kv.total,
        "kv_bytes_per_token": need.kv.per_token,
        "recurrent_bytes": need.recurrent,
        "compute_bytes": need.compute,
        "total_bytes": need.total,
        "fits": need.total <= free if free is not None else None,
        "largest_n_ctx": largest,
    }


def _show(shape: ModelShape, rows: list[dict[str, Any]], n_ctx: int, free: int | None, as_json: bool) -> None:
    if as_json:
        print_json({"name": shape.name, "n_ctx_train": shape.n_ctx_train, "free_bytes": free, "estimates": rows})
        return
    first = rows[0]
    click.echo(
        f"{shape.name}: weights {size(first['weights_bytes'])}, compute about {size(first['compute_bytes'])}, "
        f"trained for {shape.n_ctx_train:,} tokens\n"
    )
    table = []
    for row in rows:
        name = row["type_k"] if row["type_k"] == row["type_v"] else f"{row['type_k']}/{row['type_v']}"
        largest = row["largest_n_ctx"]
        shown = None if largest is None else "no limit" if largest >= MAX_N_CTX else f"{largest:,}"
        verdict = {True: "yes", False: "no", None: None}[row["fits"]]
        table.append((name, size(row["kv_bytes"]), row["kv_bytes_per_token"], size(row["total_bytes"]), verdict, shown))
    print_table(("KV", f"CACHE @ {n_ctx:,}", "BYTES/TOKEN", "TOTAL", "FITS", "LARGEST CONTEXT"), table)
    note(f"\nmemory: {size(free) if free is not None else 'unknown on this system'}")
