"""`pyllama-turbo needle`: recall of a fact from a long text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..errors import TurboError
from ..models import resolve
from ._lab import context_keywords, lab_options, model_keywords, open_results, results_option, setting_of, steps
from .flags import GroupedCommand, json_option, model_option
from .output import note, print_json, print_table
from .run import load_model

ANSWER_ROOM = 32  # tokens behind the prompt


@click.command("needle", cls=GroupedCommand)
@model_option
@click.option("-kv", "--kv", "pairs", multiple=True, metavar="KV", help="KV pairs. [default: f16,turbo3_tcq]")
@click.option(
    "-c",
    "--length",
    "lengths",
    multiple=True,
    default=("2k",),
    show_default=True,
    metavar="N",
    help="Lengths of the text in tokens, as 2k,8k.",
)
@click.option(
    "--depth",
    "depths",
    default="10,50,90",
    show_default=True,
    metavar="PERCENT",
    help="Where in the text the fact stands, in percent.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses the facts.")
@results_option
@json_option
@lab_options
def command(
    model: str,
    pairs: tuple[str, ...],
    lengths: tuple[str, ...],
    depths: str,
    seed: int,
    out: Path | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Ask for a fact hidden in a long text, for each KV pair.

    Each trial runs twice: cold, and with the text found in the cache. The mean log-probability of the right answer
    still tells types apart when all of them answer rightly.
    """
    from ..bench.cases import parse_numbers, parse_pairs
    from ..quality.needle import recall

    places = [number / 100 for number in parse_numbers(depths)]
    results = open_results(out)
    records: list[dict[str, Any]] = []
    with load_model(resolve(model), **model_keywords(values)) as opened, steps() as step:
        setting = setting_of(context_keywords(values))
        for length in parse_numbers(lengths):
            for pair in parse_pairs(pairs or ("f16,turbo3_tcq",)):
                label = f"{'/'.join(dict.fromkeys(pair))} {length:,}"
                common = {
                    "kind": "needle",
                    "model": opened.path.name,
                    "type_k": pair[0],
                    "type_v": pair[1],
                    "length": length,
                    "seed": seed,
                    "depths": places,
                    "digest": setting.digest,
                    "backend": setting.backend,
                }
                record = results.find(**common, status="ok") if results is not None else None
                if record is None:
                    try:
                        with opened.context(n_ctx=length + ANSWER_ROOM, kv=pair, **setting.context) as context:
                            found = recall(
                                context,
                                length,
                                places,
                                seed=seed,
                                progress=lambda done, label=label: step(label, done, len(places)),  # type: ignore[misc]
                            )
                        trials = [{"cold": asdict(cold), "warm": asdict(warm)} for cold, warm in found]
                        record = {**common, "status": "ok", "trials": trials}
                    except TurboError as error:
                        record = {**common, "status": "failed", "reason": error.message}
                    if results is not None:
                        results.append(record)
                records.append(record)
    if as_json:
        print_json(records)
    else:
        _show(records)
    return 0 if all(r["status"] == "ok" for r in records) else 1


def _show(records: list[dict[str, Any]]) -> None:
    from ..report.kinds import pair_name

    rows = []
    for r in records:
        if r["status"] != "ok":
            note(f"{pair_name(r)}, {r['length']:,} tokens: not measured: {r['reason']}")
            continue
        for trial in r["trials"]:
            cold, warm = trial["cold"], trial["warm"]
            rows.append(
                (
                    pair_name(r),
                    r["length"],
                    f"{100 * cold['depth']:.0f} %",
                    "found" if cold["found"] else "missed",
                    f"{cold['logprob']:.3f}",
                    "found" if warm["found"] else "missed",
                    f"{warm['logprob']:.3f}",
                    warm["reused"],
                )
            )
    if rows:
        print_table(("K/V", "TOKENS", "DEPTH", "COLD", "LOGPROB", "CACHED", "LOGPROB", "REUSED"), rows)
