"""`pyllama-turbo advise`: which KV pair to use for a model, a context and a memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import TurboError, UnsupportedError
from ..models import resolve
from ..options import parse_size
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
)
from .estimate import MemorySize
from .flags import GroupedCommand, json_option, model_option
from .output import note, print_json, print_table, size
from .run import load_model

if TYPE_CHECKING:
    from ..model import Model
    from ..quality.advise import Advice, Candidate
    from ..quality.gates import Gate
    from ..report.records import ResultFile

SPEED_TOKENS = 16


@click.command("advise", cls=GroupedCommand)
@model_option
@click.option(
    "-c", "--ctx-size", "n_ctx", default="8k", show_default=True, metavar="N", help="Context wanted, in tokens."
)
@click.option("--memory", type=MemorySize(), metavar="BYTES", help="Memory to fit into, as 8G [default: free now].")
@click.option(
    "--quality",
    "level",
    default="good",
    show_default=True,
    metavar="GATE",
    help="near-lossless, good, fair, or a threshold as kld<=0.036.",
)
@click.option("--chunks", type=click.IntRange(1), default=4, show_default=True, help="Chunks of 512 tokens scored.")
@click.option("--all", "every", is_flag=True, help="Measure dearer pairs too, after one has passed.")
@results_option
@json_option
@lab_options
def command(
    model: str,
    n_ctx: str,
    memory: int | None,
    level: str,
    chunks: int,
    every: bool,
    out: Path | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Recommend the cheapest KV pair that keeps the model's quality and fits.

    Candidates are tried from the smallest up: a short KL divergence run against f16 on this device, then the speed of
    those that pass. More --chunks make the verdict surer. Exits with 1 if no pair passes.
    """
    from ..quality.advise import choose
    from ..quality.gates import parse_gate

    wanted, gates, results = parse_size(n_ctx), parse_gate(level), open_results(out)
    with load_model(resolve(model), **model_keywords(values)) as opened:
        candidates = _fitting(opened, wanted, memory)
        measured = _measure(opened, candidates, gates, chunks, every, results, values)
        advice = choose([_with_speed(opened, c, wanted, values) for c in measured])
    if as_json:
        print_json({"n_ctx": wanted, "gates": [str(g) for g in gates], **asdict(advice)})
    else:
        _show(advice, wanted, gates)
    return 0 if advice.chosen is not None else 1


def _fitting(model: Model, n_ctx: int, memory: int | None) -> list[Candidate]:
    """Every candidate with its bytes, the smallest first; those that cannot be stored are left out."""
    from ..devices import gpus
    from ..kv_fit import plan
    from ..memory import estimate, free_host_bytes
    from ..quality.advise import CANDIDATES, Candidate

    loaded = model.facts.size_bytes  # is in memory already, so it is not part of what is free
    free = sum(d.free_bytes for d in gpus()) or free_host_bytes()
    limit = memory if memory is not None else (free + loaded if free is not None else None)
    found = []
    for k, v in CANDIDATES:
        try:
            need = estimate(model.shape, plan(model.shape, k, v), n_ctx)
        except TurboError:
            continue
        fits = limit is None or need.total <= limit
        reason = "" if fits else f"needs {size(need.total)}, there are {size(limit or 0)}"
        found.append(Candidate(k, v, need.kv.total, need.total, fits, reason=reason))
    return sorted(found, key=lambda c: c.kv_bytes)


def _measure(
    model: Model,
    candidates: Sequence[Candidate],
    gates: Sequence[Gate],
    chunks: int,
    every: bool,
    results: ResultFile | None,
    values: dict[str, Any],
) -> list[Candidate]:
    from ..quality.advise import with_quality
    from ..quality.reference import Reference

    done: list[Candidate] = []
    with steps() as step:
        plan, text = make_plan(model, (), "512", chunks, None, 512, "prefill", 1)
        reference = Reference(model, plan, setting_of(context_keywords(values)), lab_folder(), text=text)
        passed_bytes: int | None = None
        for candidate in candidates:
            dearer = passed_bytes is not None and candidate.kv_bytes > passed_bytes
            if not candidate.fits or (dearer and not every):
                done.append(candidate)
                continue
            record = results.find(**reference.done(candidate.pair)) if results is not None else None
            if record is None:
                record = reference.measure(candidate.pair, step)
                if results is not None:
                    results.append(record)
            judged = with_quality(candidate, record, gates)
            if judged.passed and passed_bytes is None:
                passed_bytes = judged.kv_bytes
            done.append(judged)
        reference.discard()
    return done


def _with_speed(model: Model, candidate: Candidate, n_ctx: int, values: dict[str, Any]) -> Candidate:
    """The candidate with its decode rate at the end of the context, if it passed or is f16 (to compare with)."""
    if not (candidate.passed or (candidate.fits and candidate.pair == ("f16", "f16"))):
        return candidate
    depth = max(n_ctx - 2 * SPEED_TOKENS, 0)
    try:
        return replace(candidate, tok_s=_speed(model, candidate, depth, "synthetic", values), speed_depth=depth)
    except UnsupportedError:  # this cache cannot be filled at once, and a prompt of that length would take long
        return replace(candidate, tok_s=_speed(model, candidate, 0, "auto", values))


def _speed(model: Model, candidate: Candidate, depth: int, fill_mode: str, values: dict[str, Any]) -> float:
    """Tokens per second, the middle one of three samples."""
    from ..bench.cases import Case, Test
    from ..bench.runner import BenchOptions, Subject

    options = BenchOptions(repeats=3, fill_mode=fill_mode, context=context_keywords(values))
    subject = Subject(model, Case(Test(0, SPEED_TOKENS), depth, candidate.pair), options)
    try:
        subject.warm_up()
        for _ in range(options.repeats):
            subject.sample()
        return 1e9 * SPEED_TOKENS / sorted(subject.samples)[1]
    finally:
        subject.close()


def _show(advice: Advice, n_ctx: int, gates: Sequence[Gate]) -> None:
    rows = []
    for c in advice.candidates:
        quality = f"{c.kld:.4f} ± {c.kld_se:.4f}" if c.kld is not None else None
        top = f"{100 * c.same_top:.1f}" if c.same_top is not None else None
        verdict = "recommended" if c is advice.chosen else "passes" if c.passed else c.reason or "not needed"
        speed = round(c.tok_s, 1) if c.tok_s is not None else None
        rows.append(
            ("/".join(dict.fromkeys(c.pair)), size(c.kv_bytes), size(c.total_bytes), quality, top, speed, verdict)
        )
    print_table(("K/V", "CACHE", "ALL MEMORY", "MEAN KLD", "SAME TOP %", "TOKENS/S", "VERDICT"), rows)
    note(f"\n{n_ctx:,} tokens of context; wanted: {', '.join(str(g) for g in gates)}")
    if depths := sorted({c.speed_depth for c in advice.candidates if c.tok_s is not None}):
        note(f"speed behind {' and '.join(f'{depth:,}' for depth in depths)} tokens")
    chosen = advice.chosen
    if chosen is None:
        note("no pair fits and passes: shorten the context, give more memory, or ask for less quality")
    else:
        click.echo(f"--kv {'/'.join(dict.fromkeys(chosen.pair))}")
