"""`pyllama-turbo levers`: the ranked lever map of a model on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..models import resolve
from ..options import parse_size
from ._lab import context_keywords, lab_options, model_keywords, steps
from .flags import GroupedCommand, json_option, model_option
from .output import note, print_json, print_table
from .run import load_model


@click.command("levers", cls=GroupedCommand)
@model_option
@click.option("-kv", "--kv", "pair", default="f16", show_default=True, metavar="KV", help="KV pair.")
@click.option(
    "-d", "--n-depth", "depth", default="0", show_default=True, metavar="N", help="Tokens in the cache before."
)
@click.option("-n", "--steps", "n_steps", type=click.IntRange(1), default=16, show_default=True, help="Steps recorded.")
@click.option(
    "--evidence",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Result files of bench, for the last column.",
)
@json_option
@lab_options
def command(
    model: str, pair: str, depth: str, n_steps: int, evidence: tuple[Path, ...], as_json: bool, **values: Any
) -> None:
    """Profile a decode step and list what would move it, the largest share first.

    The ceiling is the speed-up if a phase vanished: no work on it can gain more. The last column is counted in this
    step; --evidence adds what bench files say. docs/levers.md describes L1 to L7.
    """
    from ..bench.cases import parse_pairs
    from ..profile.capture import capture
    from ..profile.levers import counted, merged, ranked
    from ..profile.levers import evidence as read_evidence
    from ..report.records import read_records

    known = read_evidence(read_records(evidence))
    with load_model(resolve(model), **model_keywords(values)) as opened, steps() as step:
        found = capture(
            opened,
            depth=parse_size(depth),
            steps=n_steps,
            kv=parse_pairs([pair])[0],
            note=lambda text: step(text, 0, 1),
            **context_keywords(values),
        )
        title = f"{opened.facts.description}, {found.effective}, depth {depth}: a step takes {found.plain_us:,.0f} us"
    lines = ranked(found.profile, merged(counted(found), known))
    if as_json:
        counts = {"launches": found.launches, "experts": found.experts}
        print_json({"step_us": found.plain_us, **counts, "levers": [asdict(line) for line in lines]})
        return
    note(title)
    print_table(
        ("LEVERS", "PHASE", "SHARE %", "CEILING", "WHAT MOVES IT", "MEASURED"),
        [(x.ids, x.name, round(100 * x.share, 1), f"{x.ceiling:.2f}x", x.lever, x.measured or "-") for x in lines],
    )
