"""`pyllama-turbo kld`: what a compressed cache does to the model's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import OptionError
from ..models import resolve
from ._lab import (
    context_keywords,
    lab_folder,
    lab_options,
    make_plan,
    model_keywords,
    open_results,
    results_option,
    setting_of,
    steps,
    text_options,
)
from .flags import GroupedCommand, json_option, model_option
from .output import note, print_facts, print_json, print_table
from .run import load_model

DEFAULT_KV = ("q8_0", "turbo4_tcq", "turbo3_tcq", "turbo3")


@click.command("kld", cls=GroupedCommand)
@model_option
@click.option("-kv", "--kv", "pairs", multiple=True, metavar="KV", help="KV pairs, as turbo3,q8_0/turbo3; repeatable.")
@click.option("--matrix", is_flag=True, help="All pairs worth offering, on both paths.")
@click.option(
    "--path",
    type=click.Choice(("prefill", "decode", "both")),
    default="prefill",
    show_default=True,
    help="Score in batches, one token at a time, or both.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Chunks side by side on the decode path, one token of each per step.",
)
@text_options
@click.option(
    "--base",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Base file to write or use, also one of llama.cpp's perplexity tool (its tokens are scored then).",
)
@click.option(
    "--floor/--no-floor", default=True, show_default=True, help="Measure how much other roundings alone change."
)
@click.option("--keep-base", is_flag=True, help="Keep the f16 base in the cache folder for later runs.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="GATE",
    help="Exit with 1 unless passed: near-lossless, good, fair, or as kld<=0.036.",
)
@click.option("--full", is_flag=True, help="Print every statistic of each pair.")
@results_option
@json_option
@lab_options
def command(model: str, gates: tuple[str, ...], out: Path | None, full: bool, as_json: bool, **values: Any) -> int:
    """Measure KL divergence, same-top and perplexity of KV pairs against f16.

    The base run uses an f16 cache of the same model, library and path; its log-probabilities go to a file, two bytes
    for each entry of the vocabulary and scored token. An interrupted run goes on where it ended. The floor is f16
    against itself without flash attention: what other roundings alone do, and a part of every number below it.
    """
    from ..quality.gates import parse_gate

    wanted = [gate for text in gates for gate in parse_gate(text)]
    records = _measure(resolve(model), out, values)
    if as_json:
        print_json(records)
    else:
        _show(records, full)
    passed = _judge(records, wanted, quiet=as_json)
    return 0 if passed and all(r["status"] == "ok" for r in records if not r["floor"]) else 1


def _measure(path: Path, out: Path | None, values: dict[str, Any]) -> list[dict[str, Any]]:
    from ..bench.cases import parse_pairs
    from ..quality.matrix import DEFAULT_PAIRS, run_pairs

    matrix, base = values["matrix"], values["base"]
    if matrix and values["pairs"]:
        raise OptionError("--matrix chooses the pairs itself", hint="give either --matrix or --kv")
    pairs = DEFAULT_PAIRS if matrix else parse_pairs(values["pairs"] or DEFAULT_KV)
    paths = ("prefill", "decode") if matrix or values["path"] == "both" else (values["path"],)
    if base is not None and len(paths) > 1:
        raise OptionError(
            "a base file belongs to one path", asked=str(base), hint="give --path prefill or --path decode"
        )
    results = open_results(out)
    with load_model(path, **model_keywords(values)) as opened, steps() as step:
        plans, text = _plans(opened, paths, values)
        return run_pairs(
            opened,
            plans,
            pairs,
            setting_of(context_keywords(values)),
            lab_folder(),
            base=base,
            results=results,
            text=text,
            keep_base=values["keep_base"],
            floor=values["floor"],
            progress=step,
        )


def _plans(model: Any, paths: Sequence[str], values: dict[str, Any]) -> tuple[list[Any], str]:
    """A plan for each path: from the base file if there is one and no text was given, else from the text."""
    from ..quality.basefile import open_base

    base, facts = values["base"], model.tokenizer.facts
    if base is not None and base.is_file() and not values["files"]:
        bos = facts.bos if facts.add_bos else None
        parallel = values["parallel"] if paths[0] == "decode" else 1
        found = open_base(base)
        return [found.plan(bos=bos, path=paths[0], n_batch=values["n_batch"], parallel=parallel)], base.name
    made = [
        make_plan(
            model,
            values["files"],
            values["n_ctx"],
            values["chunks"],
            values["span"],
            values["n_batch"],
            path,
            values["parallel"] if path == "decode" else 1,
        )
        for path in paths
    ]
    return [plan for plan, _ in made], made[0][1]


def _show(records: Sequence[dict[str, Any]], full: bool) -> None:
    from ..report.kinds import kld_text, pair_name

    good = [r for r in records if r["status"] == "ok"]
    if good:
        first = good[0]
        note(
            f"{first['model_type']}, {first['n_tokens']:,} tokens at positions "
            f"{first['first']:,} to {first['last'] - 1:,}"
        )
    rows = [
        (
            pair_name(r),
            r["path"],
            r["kv_bits"],
            kld_text(r),
            f"{r['kld_percentiles']['0.999']:.4f}",
            f"{100 * r['same_top']:.2f} ± {100 * r['same_top_err']:.2f}",
            f"{100 * r['dp_rms']:.2f}",
            f"{r['ppl']:.3f}",
        )
        for r in good
    ]
    if rows:
        print_table(("K/V", "PATH", "BITS", "MEAN KLD", "99.9 %", "SAME TOP %", "DP RMS %", "PPL"), rows)
    for r in records:
        if r["status"] != "ok":
            note(f"{pair_name(r)}: not measured: {r['reason']}")
    if full:
        for r in good:
            click.echo(f"\n{pair_name(r)}, {r['path']}")
            print_facts(_all_numbers(r))


def _all_numbers(r: dict[str, Any]) -> list[tuple[str, str]]:
    """The statistics that llama.cpp's perplexity tool prints, to its digits."""
    return [
        ("mean PPL", f"{r['ppl']:.6f} ± {r['ppl_err']:.6f}"),
        ("mean PPL of f16", f"{r['ppl_base']:.6f} ± {r['ppl_base_err']:.6f}"),
        ("mean ln(PPL / PPL of f16)", f"{r['ln_ratio']:.6f} ± {r['ln_ratio_err']:.6f}"),
        ("correlation", f"{100 * r['correlation']:.2f} %"),
        ("mean KLD", f"{r['kld_mean']:.6f} ± {r['kld_err']:.6f} (blocks: ± {r['kld_se']:.6f})"),
        ("maximum KLD", f"{r['kld_max']:.6f}"),
        *((f"{100 * float(key):g} % KLD", f"{value:.6f}") for key, value in r["kld_percentiles"].items()),
        ("minimum KLD", f"{r['kld_min']:.6f}"),
        ("mean dp", f"{100 * r['dp_mean']:.3f} ± {100 * r['dp_err']:.3f} %"),
        ("maximum dp", f"{100 * r['dp_max']:.3f} %"),
        *((f"{100 * float(key):g} % dp", f"{100 * value:.3f} %") for key, value in r["dp_percentiles"].items()),
        ("minimum dp", f"{100 * r['dp_min']:.3f} %"),
        ("RMS dp", f"{100 * r['dp_rms']:.3f} ± {100 * r['dp_rms_err']:.3f} %"),
        ("same top", f"{100 * r['same_top']:.3f} ± {100 * r['same_top_err']:.3f} %"),
        ("stored types", f"{r['effective_k']} / {r['effective_v']}"),
        ("centre of the keys", ", ".join(filter(None, (r.get("k_center"), r.get("effective_center")))) or "none"),
    ]


def _judge(records: Sequence[dict[str, Any]], gates: Sequence[Any], *, quiet: bool) -> bool:
    """Hold every measured pair against the gates; returns whether all passed."""
    from ..quality.gates import judge
    from ..quality.reference import divergence_of
    from ..report.kinds import pair_name

    passed = True
    for r in records if gates else ():
        if r["status"] != "ok" or r["floor"]:
            continue
        verdict = judge(divergence_of(r), gates)
        passed &= verdict.passed
        failed = "; ".join(f"{c.gate.metric} is {c.value:.4g}, wanted {c.gate}" for c in verdict.checks if not c.passed)
        if not quiet:
            note(f"gate {pair_name(r)} ({r['path']}): {'passed' if verdict.passed else f'FAILED: {failed}'}")
    return passed
