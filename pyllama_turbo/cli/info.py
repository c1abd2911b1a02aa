"""`pyllama-turbo info`: what a GGUF file holds, read without loading it."""

from __future__ import annotations

from typing import Any

import click

from ..gguf import GGUFArray, GGUFFile, Value, read_model
from ..kv_fit import fits
from ..models import resolve
from ..shape import ModelShape, model_shape
from .flags import GroupedCommand, json_option
from .output import Cell, print_facts, print_json, print_table, size

MAX_SHOWN = 8
MAX_TEXT = 100


@click.command("info", cls=GroupedCommand)
@click.argument("model", envvar="PYLLAMA_TURBO_MODEL")
@click.option("--metadata", is_flag=True, help="Also list all metadata.")
@click.option("--tensors", is_flag=True, help="Also list all tensors.")
@json_option
def command(model: str, metadata: bool, tensors: bool, as_json: bool) -> None:
    """Show what the GGUF file MODEL holds and which KV types fit it.

    Reads the header only: instant, also for files that do not fit into memory.
    """
    files = read_model(resolve(model))
    shape = model_shape(files)
    if as_json:
        print_json(_as_json(files, shape, metadata, tensors))
        return
    print_facts(_facts(files, shape))
    if metadata:
        click.echo()
        print_facts([(key, _short(value)) for key, value in files[0].metadata.items()])
    if tensors:
        click.echo()
        rows = [(t.name, t.type, "x".join(map(str, t.shape)), t.n_bytes) for f in files for t in f.tensors.values()]
        print_table(("TENSOR", "TYPE", "SHAPE", "BYTES"), rows)


def _facts(files: tuple[GGUFFile, ...], shape: ModelShape) -> list[tuple[str, Cell]]:
    share = ", ".join(f"{name} {100 * n / max(shape.weights_bytes, 1):.0f} %" for name, n in shape.weight_types.items())
    facts: list[tuple[str, Cell]] = [
        ("name", shape.name),
        ("architecture", shape.arch),
        ("file", f"{files[0].path}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")),
        ("size", f"{size(sum(f.size for f in files))}, GGUF version {files[0].version}"),
        ("weights", f"{shape.n_weights:,} ({share})"),
        ("layers", shape.n_layer),
        ("trained context", shape.n_ctx_train),
        ("embedding", shape.n_embd),
        ("vocabulary", shape.n_vocab),
        ("heads", _heads(shape)),
    ]
    if shape.n_expert:
        facts.append(("experts", f"{shape.n_expert}, {shape.n_expert_used} used"))
    windows = sorted({layer.window for layer in shape.layers if layer.window})
    if windows:
        n_window = sum(layer.window > 0 for layer in shape.layers)
        facts.append(("sliding window", f"{windows[-1]:,} tokens in {n_window} of {len(shape.layers)} KV layers"))
    if shape.n_shared:
        facts.append(("shared KV", f"{shape.n_shared} layers use the cache of another"))
    if shape.n_recurrent:
        facts.append(("recurrent", f"{shape.n_recurrent} layers, {size(shape.recurrent_bytes)} a sequence"))
    if licence := files[0].string("general.license"):
        facts.append(("licence", licence))
    facts.append(("chat template", "yes" if files[0].get("tokenizer.chat_template") is not None else "no"))
    results = fits(shape)
    facts.append(("KV types", ", ".join(r.kind.name for r in results if r.stored is not None) or "none"))
    refused: dict[str, list[str]] = {}
    for r in results:
        if r.stored is None:
            refused.setdefault(r.reason, []).append(r.kind.name)
    facts += [("refused", f"{', '.join(names)}: {reason}") for reason, names in refused.items()]
    return facts


def _heads(shape: ModelShape) -> str:
    if not shape.layers:
        return "no attention"
    kinds = sorted({(shape.n_head[x.index], x.n_head_kv, x.head_dim_k, x.head_dim_v) for x in shape.layers})
    return "; ".join(f"{q} query / {kv} KV of {k}" + (f"/{v}" if v not in (0, k) else "") for q, kv, k, v in kinds)


def _short(value: Value) -> str:
    if isinstance(value, GGUFArray):
        return f"[{value.length:,} x {value.type}]"
    if isinstance(value, tuple):
        shown = ", ".join(map(str, value[:MAX_SHOWN]))
        return f"[{shown}{', ...' if len(value) > MAX_SHOWN else ''}] ({len(value):,})"
    text = f"{value:.7g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text):,} characters)"


def _as_json(files: tuple[GGUFFile, ...], shape: ModelShape, metadata: bool, tensors: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"files": [f.path for f in files], "shape": shape}
    result["kv_types"] = [
        {"name": r.kind.name, "stored": r.stored.name if r.stored else None, "reason": r.reason} for r in fits(shape)
    ]
    if metadata:
        result["metadata"] = dict(files[0].metadata)
    if tensors:
        result["tensors"] = [t for f in files for t in f.tensors.values()]
    return result
