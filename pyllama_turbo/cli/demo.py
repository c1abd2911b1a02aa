"""`pyllama-turbo demo`: everything once, on a small model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import kv
from ..kv_fit import plan
from ..memory import fit_n_ctx, free_host_bytes
from ..models import KNOWN, fetch, fetched_path, resolve
from .output import note, print_table, progress, size
from .run import centering_line, f16_bytes, kv_line, load_model, make_context

if TYPE_CHECKING:
    from ..model import Model

PROMPT = "The three laws of robotics are:"


@click.command("demo")
@click.option("-m", "--model", default="smollm2", show_default=True, metavar="MODEL", help="Model name or GGUF file.")
@click.option("--kv", "kv_type", default="turbo3", show_default=True, metavar="KV", help="KV types to show beside f16.")
@click.option("-p", "--prompt", default=PROMPT, show_default=True, metavar="TEXT", help="What to continue.")
@click.option("-n", "n_tokens", type=click.IntRange(2, 4096), default=64, show_default=True, help="Tokens to generate.")
def command(model: str, kv_type: str, prompt: str, n_tokens: int) -> None:
    """Generate the same text with f16 and with a compressed KV cache, and compare.

    Shows the texts, requested and effective KV types, bytes, the context that fits into this machine's free memory, and
    tokens per second. Fetches the model first if it is a known one that is not here.
    """
    if model in KNOWN and fetched_path(model) is None:
        entry = KNOWN[model]
        note(f"fetching {entry.summary} ({size(entry.n_bytes)}); licence: {entry.licence}")
        with progress(f"fetching {model}", entry.n_bytes, as_bytes=True) as update:
            fetch(model, progress=lambda done, total: update(done))
    with load_model(resolve(model)) as opened:
        click.echo(f"{opened.facts.description}, {opened.path.name}\n")
        _warm_up(opened)
        rows = [_measure(opened, choice, prompt, n_tokens) for choice in ("f16", kv_type)]
        for row in rows:
            click.echo(f"{row['kv']}: {row['line']}")
        click.echo()
        _compare(opened, rows)


def _warm_up(model: Model) -> None:
    """Touch the weights once, so that the first measurement does not pay for reading them from the disk."""
    with model.context(n_ctx=256) as ctx:
        ctx.decode(model.tokenizer.encode("warm up"))


def _measure(model: Model, choice: str, prompt: str, n_tokens: int) -> dict[str, Any]:
    """Generate with one choice of KV types, showing the text as it comes."""
    from ..generate import generate

    with (
        make_context(model, n_ctx=2048, kv=choice) as ctx,
        generate(ctx, prompt, max_tokens=n_tokens, temperature=0) as events,
    ):
        click.echo(f"--- {choice} ---\n{prompt}", nl=False)
        for event in events:
            click.echo(event.text, nl=False)
        click.echo("\n")
        return {
            "kv": choice,
            "line": f"{kv_line(ctx.kv)}; {centering_line(ctx.kv)}",
            "bytes": ctx.kv.bytes,
            "f16": f16_bytes(ctx.kv),
            "n_ctx": ctx.n_ctx,
            "prompt": event.prompt_tok_s,
            "decode": event.decode_tok_s,
        }


def _compare(model: Model, rows: list[dict[str, Any]]) -> None:
    free = free_host_bytes()
    table = []
    for row in rows:
        k, v = kv.parse(row["kv"])
        room = fit_n_ctx(model.shape, plan(model.shape, k, v), free) if free is not None else None
        table.append(
            (
                row["kv"],
                size(row["bytes"]),
                f"{row['f16'] / row['bytes']:.2f}x smaller" if row["bytes"] != row["f16"] else "",
                f"{room:,}" if room is not None else None,
                f"{row['prompt']:,.0f}",
                f"{row['decode']:,.1f}",
            )
        )
    head = f"CACHE @ {rows[0]['n_ctx']:,}"
    print_table(("KV", head, "AGAINST F16", "CONTEXT THAT FITS", "PROMPT TOK/S", "DECODE TOK/S"), table)
    if free is not None:
        note(f"\nfree memory: {size(free)}; trained context: {model.facts.n_ctx_train:,} tokens")
