"""`pyllama-turbo kv`: the KV cache types, and which of them fit a model."""

from __future__ import annotations

from typing import Any

import click

from .. import kv
from ..kv_budget import Choice, recommend
from ..kv_fit import KVFit, fits
from ..memory import MAX_N_CTX, KVPlan, kv_bytes
from ..models import resolve
from ..shape import ModelShape, model_shape
from .flags import GroupedCommand, json_option
from .output import print_json, print_table, size

TOKENS = 1024
F16_BITS = 16.0


def limits(kind: kv.KVType) -> str:
    """What a type asks of a model, in words."""
    if kind.is_turbo:
        return "head dims multiples of 64; flash attention; no MLA"
    if kind.block_values > 1:
        return f"head dims multiples of {kind.block_values}; as V needs flash attention"
    return ""


@click.command("kv", cls=GroupedCommand)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    envvar="PYLLAMA_TURBO_MODEL",
    help="GGUF file, or the name of a fetched model: show which types fit it.",
)
@json_option
def command(model: str | None, as_json: bool) -> None:
    """List the KV cache types; with a model, which of them fit and what they cost.

    K and V types are chosen apart: --kv q8_0/turbo3, or --cache-type-k and --cache-type-v. Errors of K weigh 2.5
    times as much as those of V, so the recommendations for each number of bits never give K fewer than V.
    """
    if model is None:
        _show_types(as_json)
    else:
        shape = model_shape(resolve(model))
        _show_fits(shape, fits(shape), as_json)


def _show_types(as_json: bool) -> None:
    kinds = kv.types()
    choices = recommend(kinds)
    if as_json:
        types = [
            {
                "name": t.name,
                "bits": t.bits,
                "block_values": t.block_values,
                "block_bytes": t.block_bytes,
                "is_turbo": t.is_turbo,
                "limits": limits(t),
            }
            for t in kinds
        ]
        print_json({"types": types, "recommended": [_choice_row(c) for c in choices]})
        return
    rows = [
        (t.name, t.bits, t.block_values, t.block_bytes, f"{F16_BITS / t.bits:.2f}x", limits(t) or "any model")
        for t in kinds
    ]
    print_table(("TYPE", "BITS", "BLOCK", "BYTES", "F16/TYPE", "NEEDS"), rows)
    click.echo(
        "\nBITS per value, everything included. Models whose head dims are no multiples of 128 get turbo blocks of 64."
    )
    _show_choices(choices)


def _choice_row(choice: Choice) -> dict[str, Any]:
    family_k, family_v = choice.k.family, choice.v.family
    return {"budget_bits": choice.budget, "type_k": family_k, "type_v": family_v, "bits": choice.bits}


def _show_choices(choices: tuple[Choice, ...]) -> None:
    """The best pair for each number of bits."""
    if not choices:
        return
    click.echo("\nThe most exact pair for a number of bits a value (K and V together; K never has fewer than V):\n")
    rows = []
    for choice in choices:
        k, v = choice.k.family, choice.v.family
        rows.append((f"{choice.budget:g}", k, v, choice.bits, f"--kv {k if k == v else f'{k}/{v}'}"))
    print_table(("UP TO", "K", "V", "BITS", "FLAG"), rows)
    click.echo("\nTypes without _tcq decode faster: `pyllama-turbo advise -m MODEL` measures both on this machine.")


def fit_row(shape: ModelShape, result: KVFit) -> dict[str, Any]:
    """One type and one model as a row of facts.

    `bytes_per_1k` is what 1,024 more tokens cost, `fixed_bytes` what sliding-window layers take at any length.
    """
    stored = result.stored
    size = kv_bytes(shape, KVPlan(stored, stored), MAX_N_CTX) if stored else None
    return {
        "name": result.kind.name,
        "fits": stored is not None,
        "stored": stored.name if stored else None,
        "bits": stored.bits if stored else None,
        "bytes_per_1k": size.per_token * TOKENS if size else None,
        "fixed_bytes": size.fixed if size else None,
        "ratio": stored.bits / F16_BITS if stored else None,
        "reason": result.reason,
    }


def _show_fits(shape: ModelShape, results: tuple[KVFit, ...], as_json: bool) -> None:
    rows = [fit_row(shape, result) for result in results]
    choices = recommend([result.stored for result in results if result.stored is not None])
    if as_json:
        facts = {"arch": shape.arch, "name": shape.name, "head_dims": shape.head_dims, "types": rows}
        print_json({**facts, "recommended": [_choice_row(c) for c in choices]})
        return
    dims = ", ".join(map(str, shape.head_dims))
    click.echo(f"{shape.name} ({shape.arch}): {len(shape.layers)} KV layers, head dims {dims or '-'}")
    n_window = sum(layer.window > 0 for layer in shape.layers)
    if n_window:
        widest = max(layer.window for layer in shape.layers)
        click.echo(f"{n_window} layers slide over {widest:,} tokens: their part is FIXED, the others grow")
    click.echo()
    print_table(
        ("TYPE", "STORED AS", "BITS", "PER 1K TOKENS", "FIXED", "OF F16", "WHY NOT"),
        [
            (
                row["name"],
                row["stored"],
                row["bits"],
                size(row["bytes_per_1k"]) if row["fits"] else None,
                size(row["fixed_bytes"]) if row["fixed_bytes"] else None,
                f"{100 * row['ratio']:.1f} %" if row["fits"] else None,
                row["reason"],
            )
            for row in rows
        ],
    )
    _show_choices(choices)
