"""`pyllama-turbo profile`: where the time of a decode step goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OptionError
from ..models import resolve
from ..options import parse_size
from ._lab import context_keywords, lab_options, model_keywords, open_results, results_option, steps
from .flags import GroupedCommand, json_option, model_option
from .output import note, print_json, print_table
from .run import load_model

if TYPE_CHECKING:
    from ..model import Model
    from ..profile.capture import Capture
    from ..profile.events import Profile


@click.command("profile", cls=GroupedCommand)
@model_option
@click.option("-kv", "--kv", "pair", default="f16", show_default=True, metavar="KV", help="KV pair.")
@click.option("--against", metavar="KV", help="A second KV pair, for the difference by phase.")
@click.option(
    "--before",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with the last profile of this result file: another build, other switches.",
)
@click.option(
    "-d", "--n-depth", "depth", default="0", show_default=True, metavar="N", help="Tokens in the cache before."
)
@click.option("-n", "--steps", "n_steps", type=click.IntRange(1), default=16, show_default=True, help="Steps recorded.")
@click.option(
    "--method",
    type=click.Choice(("auto", "cupti", "operations")),
    default="auto",
    show_default=True,
    help="GPU kernels through CUPTI, or single operations on the CPU.",
)
@click.option(
    "--fill",
    type=click.Choice(("auto", "prefill", "synthetic")),
    default="auto",
    show_default=True,
    help="How the cache gets to its depth.",
)
@click.option("--top", type=click.IntRange(0), default=15, show_default=True, help="Kernels or operations listed.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a Chrome trace (opens in Perfetto).",
)
@results_option
@json_option
@lab_options
def command(
    model: str,
    pair: str,
    against: str | None,
    before: Path | None,
    depth: str,
    top: int,
    trace: Path | None,
    out: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Profile decode steps: share, calls and time of each phase and kernel, with CUDA graphs as they are.

    On a GPU, CUPTI is opened inside this process: nothing else is needed, and no other profiler may run. On the CPU
    every operation is timed alone, which makes a step somewhat slower.
    """
    from ..profile.events import Profile
    from ..profile.trace import write_trace

    n_depth = parse_size(depth)
    saved = _saved(before) if before is not None else None
    with load_model(resolve(model), **model_keywords(values)) as opened:
        names = [name for name in (pair, against) if name is not None]
        captures = [_capture(opened, name, n_depth, values) for name in names]
        records = [_record(opened, c, name, n_depth) for c, name in zip(captures, names, strict=True)]
    if trace is not None:
        write_trace(trace, captures[-1].events)
    results = open_results(out)
    for record in records if results is not None else ():
        results.append(record)  # type: ignore[union-attr]
    if as_json:
        print_json([*([saved] if saved else []), *records] if saved or against else records[0])
        return
    for name, capture in zip(names, captures, strict=True):
        _show(name, capture, top)
    if against:
        _show_difference([capture.profile for capture in captures], names)
    if saved is not None:
        then = f"{saved.get('label')} of library {saved.get('digest', 'unknown')} at depth {saved.get('depth')}"
        _show_difference([Profile.of_record(saved), captures[0].profile], [then, f"{names[0]} now"])


def _saved(path: Path) -> dict[str, Any]:
    """The last profile of a result file."""
    from ..report.records import read_records

    found = [r for r in read_records([path]) if r.get("kind") == "profile"]
    if not found:
        raise OptionError(f"{path} holds no profile", asked=str(path), hint="profile ... --out FILE writes one")
    return found[-1]


def _capture(model: Model, pair: str, depth: int, values: dict[str, Any]) -> Capture:
    from ..bench.cases import parse_pairs
    from ..profile.capture import capture

    with steps() as step:
        return capture(
            model,
            depth=depth,
            steps=values["n_steps"],
            fill_mode=values["fill"],
            method=values["method"],
            kv=parse_pairs([pair])[0],
            note=lambda text: step(f"{pair}: {text}", 0, 1),
            **context_keywords(values),
        )


def _record(model: Model, capture: Capture, name: str, depth: int) -> dict[str, Any]:
    from ..buildinfo import build_info

    facts = {"model": model.path.name, "model_type": model.facts.description, "digest": build_info().get("digest", "")}
    return capture.record(**facts, label=name, depth=depth)


def _show(name: str, capture: Capture, top: int) -> None:
    from ..profile.table import kernel_rows, phase_rows, summary_lines

    profile = capture.profile
    click.echo(
        f"{name} (stored {capture.effective}), {profile.n_steps} steps of {profile.step_us:,.0f} us "
        f"({capture.plain_us:,.0f} us without the profiler)\n"
    )
    print_table(*phase_rows(profile))
    if top:
        click.echo()
        print_table(*kernel_rows(profile, top))
    click.echo()
    for line in summary_lines(capture):
        click.echo(line)
    if profile.peak_gb_s:
        note(f"copy rate of the memory: {profile.peak_gb_s:,.0f} GB/s read and written")


def _show_difference(profiles: list[Profile], names: list[str]) -> None:
    from ..profile.table import compare_rows

    click.echo(f"A = {names[0]}, B = {names[1]}\n")
    print_table(*compare_rows(*profiles))
