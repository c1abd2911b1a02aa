"""What the measuring commands share: texts, context options, progress with an estimate, result files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ..errors import OptionError
from ..options import ContextOptions, ModelOptions, specs
from .flags import given, option_flags
from .output import colour

if TYPE_CHECKING:
    from ..model import Model
    from ..quality.plan import ScorePlan
    from ..quality.reference import Setting
    from ..report.records import ResultFile

_F = TypeVar("_F", bound=Callable[..., Any])

# Context options that do not change what is measured into something else; the commands set the rest.
_FREE = (
    "n_threads",
    "n_threads_batch",
    "flash_attn",
    "k_center",
    "calibrate",
    "offload_kqv",
    "swa_full",
    "rope_scaling",
    "rope_freq_base",
    "rope_freq_scale",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_orig_ctx",
)
_SET = tuple(spec.name for spec in specs(ContextOptions) if spec.name not in _FREE)

Step = Callable[[str, int, int], None]  # label, done, total


def lab_options(function: _F) -> _F:
    """The context and model options of a measuring command."""
    return option_flags(ContextOptions, ModelOptions, leave_out=_SET)(function)


def bench_options(function: _F) -> _F:
    """As `lab_options`, without those that a bench command takes lists of."""
    return option_flags(ContextOptions, ModelOptions, leave_out=(*_SET, "n_threads", "flash_attn"))(function)


def context_keywords(values: dict[str, Any]) -> dict[str, Any]:
    """The context options that were given, without those the command sets itself."""
    return {name: value for name, value in given(values, ContextOptions).items() if name in _FREE}


def model_keywords(values: dict[str, Any]) -> dict[str, Any]:
    """The model options that were given."""
    return given(values, ModelOptions)


def text_options(function: _F) -> _F:
    """Options that choose the text and what of it is scored."""
    options = (
        click.option(
            "-f",
            "--file",
            "files",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            multiple=True,
            help="Text to score; several are taken in turns. [default: built-in prose and code]",
        ),
        click.option(
            "-c",
            "--ctx-size",
            "n_ctx",
            default="512",
            show_default=True,
            metavar="N",
            help="Tokens of a chunk; the second half of each is scored.",
        ),
        click.option("--chunks", type=click.IntRange(1), default=17, show_default=True, help="Chunks at most."),
        click.option(
            "--range",
            "span",
            metavar="FIRST-LAST",
            help="Score these positions of one long text instead of chunks, as 7680-8191.",
        ),
        click.option(
            "-b",
            "--batch-size",
            "n_batch",
            type=click.IntRange(1),
            default=512,
            show_default=True,
            help="Tokens of a batch on the prefill path.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def parse_span(text: str) -> tuple[int, int]:
    """Positions "7680-8191" (both included) as a half-open range.

    Raises:
        OptionError: it is none.
    """
    from ..bench.cases import parse_numbers

    first, separator, last = text.partition("-")
    if not separator:
        raise OptionError(f"{text!r} is no range of positions", asked=text, hint="write 7680-8191")
    return parse_numbers(first)[0], parse_numbers(last)[0] + 1


def make_plan(
    model: Model,
    files: tuple[Path, ...],
    n_ctx: str,
    chunks: int,
    span: str | None,
    n_batch: int,
    path: str,
    parallel: int,
) -> tuple[ScorePlan, str]:
    """The plan of a command line, and the name of its text."""
    from ..options import parse_size
    from ..quality.plan import chunk_plan, range_plan
    from ..quality.texts import builtin_tokens, file_tokens

    size = parse_size(n_ctx)
    bounds = parse_span(span) if span else None
    wanted = bounds[1] + 1 if bounds else size * chunks
    tokenizer = model.tokenizer
    if files:
        # One file is tokenized as llama.cpp's perplexity tool does it, BOS included.
        special = len(files) == 1
        available = file_tokens(lambda t: tokenizer.encode(t, add_special=special), files, piece=size)
        tokens, name = available[:wanted], ", ".join(file.name for file in files)
    else:
        piece = size if bounds is None else min(2048, wanted)
        tokens = builtin_tokens(lambda t: tokenizer.encode(t, add_special=False), wanted, piece)
        name = "built-in (Python reference and library)"
    bos = tokenizer.facts.bos if tokenizer.facts.add_bos else None
    if bounds:
        return range_plan(tokens, *bounds, bos=bos, path=path, n_batch=n_batch), name
    return chunk_plan(tokens, size, chunks, bos=bos, path=path, n_batch=n_batch, parallel=parallel), name


def lab_folder() -> Path:
    """Where bases and unfinished runs are kept."""
    from ..models import cache_dir

    return cache_dir().parent / "lab"


def setting_of(context: dict[str, Any]) -> Setting:
    """Library and context of a measurement."""
    from ..buildinfo import build_info
    from ..quality.reference import Setting

    info = build_info()
    return Setting(str(info.get("digest", "")), str(info.get("backend", "")), context)


def open_results(path: Path | None) -> ResultFile | None:
    """The result file of a command, begun with where its numbers come from."""
    if path is None:
        return None
    from ..report.provenance import collect
    from ..report.records import ResultFile

    results = ResultFile(path)
    record = collect().record()
    if results.find(**{k: v for k, v in record.items() if k not in ("time", "clocks")}) is None:
        results.append(record)
    return results


results_option = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the records to this file (JSON lines); what is in it already is not measured again.",
)


def given_arguments(ctx: click.Context, leave_out: Sequence[str]) -> list[str]:
    """The options of a call that came from the command line, written out again, for a process of the same command."""
    written: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        if name in leave_out or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value, flag = ctx.params[name], max(param.opts, key=len)
        if isinstance(param, click.Option) and param.is_flag:
            written.append(flag if value else max(param.secondary_opts or [flag], key=len))
        elif param.multiple:
            written += [part for item in value for part in (flag, str(item))]
        else:
            written += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return written


@contextmanager
def steps() -> Iterator[Step]:
    """A bar on stderr with label and remaining time, gone afterwards; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    console = Console(stderr=True, no_color=not colour(sys.stderr))
    with Progress(*columns, console=console, transient=True) as bar:
        before, task = (0, 0), bar.add_task("")

        def step(label: str, done: int, total: int) -> None:
            nonlocal before
            if total != before[1] or done < before[0]:  # another piece of work: its estimate begins anew
                bar.reset(task, total=total, completed=0)
            before = (done, total)
            bar.update(task, description=label, completed=done, total=total)

        yield step
