"""`pyllama-turbo bench`: tokens per second over KV types, depths and batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OptionError, TurboError
from ..models import resolve
from ._lab import bench_options, context_keywords, given_arguments, model_keywords, open_results, results_option, steps
from .flags import GroupedCommand, model_option
from .output import note, print_json, print_table
from .run import load_model

if TYPE_CHECKING:
    from ..bench.cases import Case, Matrix
    from ..bench.rows import Row
    from ..bench.runner import BenchOptions
    from ..model import Model
    from ..report.records import ResultFile

FORMATS = ("table", "md", "csv", "json", "jsonl")


@click.command("bench", cls=GroupedCommand)
@model_option
@click.option("-p", "--n-prompt", "prompts", default="512", show_default=True, metavar="LIST", help="Prompt lengths.")
@click.option("-n", "--n-gen", "gens", default="128", show_default=True, metavar="LIST", help="Generation lengths.")
@click.option("-pg", "both", multiple=True, metavar="PROMPT,GEN", help="Prompt and generation timed together.")
@click.option(
    "-d", "--n-depth", "depths", default="0", show_default=True, metavar="LIST", help="Tokens in the cache before."
)
@click.option("-kv", "--kv", "pairs", multiple=True, metavar="LIST", help="KV pairs, as f16,turbo3,q8_0/turbo3.")
@click.option(
    "-ctk", "--cache-type-k", "keys", multiple=True, metavar="LIST", help="Key types, combined with all value types."
)
@click.option("-ctv", "--cache-type-v", "vals", multiple=True, metavar="LIST", help="Value types.")
@click.option(
    "-b", "--batch-size", "batch", default="2048", show_default=True, metavar="LIST", help="Tokens of a decode call."
)
@click.option(
    "-ub", "--ubatch-size", "ubatch", default="512", show_default=True, metavar="LIST", help="Tokens computed at once."
)
@click.option(
    "-t", "--threads", "threads", default="0", show_default=True, metavar="LIST", help="Threads; 0 = physical cores."
)
@click.option("-fa", "--flash-attn", "flash", default="auto", show_default=True, metavar="LIST", help="on, off, auto.")
@click.option(
    "-r", "--repetitions", "repeats", type=click.IntRange(1), default=5, show_default=True, help="Samples of each case."
)
@click.option("--no-warmup", is_flag=True, help="Time the first run too.")
@click.option(
    "--interleave/--no-interleave",
    default=True,
    show_default=True,
    help="Sample the KV pairs in turns, with ratios to the first; needs room for all their caches.",
)
@click.option(
    "--fill",
    type=click.Choice(("auto", "prefill", "synthetic")),
    default="auto",
    show_default=True,
    help="How a cache gets to its depth; auto computes no prompt beyond 16k where it can.",
)
@click.option(
    "--switches", metavar="A,B", help="2x2 table of two of graphs, fused, up_gate, products. One process a cell."
)
@click.option(
    "--llama-bench",
    "program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PROGRAM",
    help="Compare with this build of llama.cpp's llama-bench, round by round; exit with 1 if they disagree.",
)
@click.option(
    "-o", "--output", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="What to print."
)
@click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
@results_option
@bench_options
def command(
    model: str,
    switches: str | None,
    program: Path | None,
    form: str,
    as_json: bool,
    out: Path | None,
    **values: Any,
) -> int:
    """Measure prompt and generation speed, as llama-bench does and in its rows.

    LIST is 512,1024 or a range: 0-4096+1024 (steps), 1k-32k*2 (multiples). Ratios are medians over repeats taken in
    turns, with the smallest and largest. A case that fails keeps its row with the reason, and the exit code is 1.
    """
    if switches:
        given = given_arguments(click.get_current_context(), ("switches", "form", "as_json", "out"))
        return _switches(switches, out, given, as_json or form in ("json", "jsonl"))
    if program is not None:
        return _compare(model, program, out, as_json or form in ("json", "jsonl"), values)
    form = "json" if as_json else form
    matrix, options = _matrix(values), _options(values)
    results = open_results(out)
    with load_model(resolve(model), **model_keywords(values)) as opened:
        rows = _run(opened, matrix, options, results, form)
    _print(rows, form)
    return 0 if all(row.status == "ok" for row in rows) else 1


def _matrix(values: dict[str, Any]) -> Matrix:
    from ..bench.cases import Matrix, parse_numbers, parse_pairs, parse_tests

    return Matrix(
        tests=parse_tests(parse_numbers(values["prompts"]), parse_numbers(values["gens"]), values["both"]),
        depths=parse_numbers(values["depths"]),
        pairs=parse_pairs(values["pairs"], values["keys"], values["vals"]),
        n_batch=parse_numbers(values["batch"]),
        n_ubatch=parse_numbers(values["ubatch"]),
        n_threads=parse_numbers(values["threads"]),
        flash_attn=tuple(part.strip() for part in values["flash"].split(",")),
    )


def _options(values: dict[str, Any]) -> BenchOptions:
    from ..bench.runner import BenchOptions

    chosen = context_keywords(values)
    return BenchOptions(values["repeats"], not values["no_warmup"], values["interleave"], values["fill"], chosen)


def _run(model: Model, matrix: Matrix, options: BenchOptions, results: ResultFile | None, form: str) -> list[Row]:
    """All rows; each group is saved as soon as it is measured, and found again."""
    from ..bench.rows import json_line
    from ..bench.runner import common_row, run_group
    from ..report.provenance import collect

    common, groups = common_row(model, collect()), matrix.groups()
    rows: list[Row] = []
    rounds = options.repeats + options.warm_up
    begun, total = 0, rounds * len(matrix)
    with steps() as step:

        def report(label: str) -> None:
            nonlocal begun
            step(label, begun, total)
            begun += 1

        for number, group in enumerate(groups, 1):
            found = _saved(results, group, common) if results is not None else None
            if found is None:
                found = run_group(model, group, options, common, report)
                for row in found if results is not None else ():
                    results.append(row.record())  # type: ignore[union-attr]
            rows += found
            begun = number * rounds * len(group)  # also past what was in the file, or failed
            if form == "jsonl":
                for row in found:
                    click.echo(json_line(row))
    return rows


def _saved(results: ResultFile, group: Sequence[Case], common: Row) -> list[Row] | None:
    """The rows of a group if the file has every one of them, measured with this library, model and switches."""
    from ..bench.rows import row_of

    rows = []
    for case in group:
        record = results.find(
            kind="bench",
            status="ok",
            digest=common.digest,
            model_filename=common.model_filename,
            graphs=common.graphs,
            fused=common.fused,
            moe_fused=common.moe_fused,
            type_k=case.kv[0],
            type_v=case.kv[1],
            n_depth=case.depth,
            n_prompt=case.test.n_prompt,
            n_gen=case.test.n_gen,
            n_batch=case.n_batch,
            n_ubatch=case.n_ubatch,
        )
        if record is None or (case.n_threads and record["n_threads"] != case.n_threads):
            return None
        rows.append(row_of(record))
    return rows


def _print(rows: Sequence[Row], form: str) -> None:
    from ..bench.rows import csv_lines, json_line, markdown, table_cells, without_constants

    if form == "md":
        click.echo(markdown(rows), nl=False)
    elif form == "csv":
        click.echo(csv_lines(rows), nl=False)
    elif form == "json":
        click.echo("[\n" + ",\n".join(json_line(row) for row in rows) + "\n]")
    elif form == "table":
        caption, headers, cells = without_constants(*table_cells(rows))
        note(caption)
        print_table([h.upper() for h in headers], cells)
        _remarks(rows)


def _remarks(rows: Sequence[Row]) -> None:
    """What a reader has to know about the table: substituted types, how depths were reached, where it was measured."""
    ways = sorted({row.depth_fill for row in rows if row.depth_fill})
    stored = sorted({f"{row.type_k} as {row.effective_k}" for row in rows if row.effective_k not in ("", row.type_k)})
    good = next((row for row in rows if row.status == "ok"), None)
    if good is not None:
        note(f"\n{good.gpu_info or good.cpu_info}, {good.n_threads} threads, library {good.digest}")
    if ways:
        note(f"depth by {' and '.join(ways)}")
    if stored:
        note(f"keys stored: {', '.join(stored)}")


def _switches(names: str, out: Path | None, arguments: Sequence[str], as_json: bool) -> int:
    """The 2x2 table: this command again, once for each combination."""
    from ..bench.flags import run_cells, table

    wanted = [name.strip() for name in names.split(",")]
    if len(wanted) > 2:
        raise OptionError("two switches make a table", asked=names)
    cells = run_cells(wanted, arguments)
    if as_json:
        print_json([{"state": dict(cell.state), "median_ts": cell.rate, "rows": cell.rows} for cell in cells])
    else:
        print_table(*table(cells))
    results = open_results(out)
    for record in (row for cell in cells for row in cell.rows):
        if results is not None:
            results.append(record)
    failed = [row["reason"] for cell in cells for row in cell.rows if row["status"] != "ok"]
    if failed:
        raise TurboError(f"a cell could not be measured: {failed[0]}")
    return 0


def _compare(model: str, program: Path, out: Path | None, as_json: bool, values: dict[str, Any]) -> int:
    """Every case of the matrix by llama-bench and by us."""
    from ..bench.upstream import against_llama_bench

    options, results = _options(values), open_results(out)
    found = []
    with load_model(resolve(model), **model_keywords(values)) as opened, steps() as step:
        cases = [case for group in _matrix(values).groups() for case in group]
        for number, case in enumerate(cases):
            step(f"{case.name} {'/'.join(case.kv)}", number, len(cases))
            done = against_llama_bench(opened, case, program, options)
            found.append(done)
            if results is not None:
                results.append(done.record())
    if as_json:
        print_json([done.record() for done in found])
    else:
        rows = [
            (
                "/".join(dict.fromkeys(done.case.kv)),
                done.case.name,
                *(f"{rate:.2f}" for rate in done.rates),
                f"{done.ratio.median:.3f} ({done.ratio.low:.3f} to {done.ratio.high:.3f})",
                "yes" if done.agrees else "NO",
            )
            for done in found
        ]
        print_table(("K/V", "TEST", "T/S", "LLAMA-BENCH", "RATIO", "AGREES"), rows)
    return 0 if all(done.agrees for done in found) else 1
