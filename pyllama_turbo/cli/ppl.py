"""`pyllama-turbo ppl`: perplexity of a text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..models import resolve
from ._lab import context_keywords, lab_options, make_plan, model_keywords, steps, text_options
from .flags import GroupedCommand, json_option, model_option
from .output import note, print_json, print_table
from .run import load_model


@click.command("ppl", cls=GroupedCommand)
@model_option
@click.option("-kv", "--kv", "pairs", multiple=True, metavar="KV", help="KV pairs, as f16,turbo3. [default: f16]")
@click.option(
    "--path",
    type=click.Choice(("prefill", "decode")),
    default="prefill",
    show_default=True,
    help="Score in batches or one token at a time.",
)
@text_options
@json_option
@lab_options
def command(
    model: str,
    pairs: tuple[str, ...],
    path: str,
    files: tuple[Path, ...],
    n_ctx: str,
    chunks: int,
    span: str | None,
    n_batch: int,
    as_json: bool,
    **values: Any,
) -> None:
    """Measure perplexity, chunk by chunk as llama.cpp's perplexity tool does.

    Perplexity is the wrong measure for a compressed cache: errors that help and errors that hurt cancel. Use kld.
    """
    from ..bench.cases import parse_pairs
    from ..quality.measure import perplexity
    from ..quality.passes import open_source

    found = []
    with load_model(resolve(model), **model_keywords(values)) as opened, steps() as step:
        plan, text = make_plan(opened, files, n_ctx, chunks, span, n_batch, path, 1)
        for pair in parse_pairs(pairs):
            name = "/".join(dict.fromkeys(pair))
            source = open_source(opened, plan, kv=pair, **context_keywords(values))
            with source.context:
                result = perplexity(source, plan, lambda done, name=name: step(name, done, plan.n_scored))  # type: ignore[misc]
            found.append({"type_k": pair[0], "type_v": pair[1], "path": path, "text": text, **asdict(result)})
    if as_json:
        print_json(found)
        return
    note(f"{text}: {plan.n_scored:,} tokens scored, context {plan.n_ctx:,}")
    rows = [
        (
            "/".join(dict.fromkeys((r["type_k"], r["type_v"]))),
            f"{r['ppl']:.4f} ± {r['ppl_err']:.5f}",
            f"{r['ppl_se']:.5f}",
        )
        for r in found
    ]
    print_table(("K/V", "PPL", "ERROR BY BLOCKS"), rows)
