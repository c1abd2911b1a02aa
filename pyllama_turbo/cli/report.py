"""`pyllama-turbo report`: results as one HTML file, or as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OptionError
from ..models import resolve
from ._lab import open_results
from .flags import GroupedCommand, json_option
from .output import note, print_json

if TYPE_CHECKING:
    from ..report.figure import Figure

_CONTEXTS = tuple(1 << i for i in range(12, 18))  # 4k to 128k tokens
_PAIRS = ("f16", "q8_0", "turbo4_tcq", "turbo4", "turbo3_tcq", "turbo3", "turbo2_tcq", "turbo2")


@click.command("report", cls=GroupedCommand)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--html", "page", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="HTML file to write."
)
@click.option(
    "--markdown",
    "text",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Markdown file to write.",
)
@click.option("-m", "--model", "models", multiple=True, metavar="MODEL", help="Add the bytes of this model's KV cache.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the bytes of -m to this result file.",
)
@json_option
@click.option("--title", default="pyllama_turbo results", show_default=True, help="Heading.")
def command(
    files: tuple[Path, ...],
    page: Path | None,
    text: Path | None,
    models: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    title: str,
) -> None:
    """Draw the result FILES of bench, kld, needle, profile and the GPU scripts; without a file to write, print tables.

    The HTML file needs nothing else: pictures are inside, every plot has its table, light and dark follow the reader's
    setting, and the head says where the numbers come from.
    """
    from ..report.page import html_page, markdown_page
    from ..report.plots import figures
    from ..report.records import read_records

    if not files and not models:
        raise OptionError("there is nothing to report", hint="give result files, or a model with -m")
    memory = [memory_record(resolve(name)) for name in models]
    results = open_results(out)
    for record in memory if results is not None else ():
        results.append(record)  # type: ignore[union-attr]
    records = read_records(files) + memory
    for path, content in ((page, html_page), (text, markdown_page)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content(records, title), encoding="utf-8")
            note(f"wrote {path}")
    if as_json:
        print_json([figure_record(figure) for figure in figures(records)])
    elif page is None and text is None and out is None:
        click.echo(markdown_page(records, title), nl=False)


def figure_record(figure: Figure) -> dict[str, Any]:
    """A figure without its picture."""
    return {"title": figure.title, "note": figure.note, "headers": figure.headers, "rows": figure.rows}


def memory_record(path: Path) -> dict[str, Any]:
    """Bytes of a model's KV cache by type and context, computed from its header."""
    from ..kv_fit import fits, plan
    from ..memory import free_host_bytes, kv_bytes
    from ..shape import model_shape

    shape = model_shape(path)
    fitting = {fit.kind.name for fit in fits(shape) if fit.stored is not None}
    types = []
    for name in (n for n in _PAIRS if n in fitting):
        kv_plan = plan(shape, name, name)
        points = [[n, kv_bytes(shape, kv_plan, n).total] for n in _CONTEXTS]
        bits = 8 * kv_plan.type_k.block_bytes / kv_plan.type_k.block_values
        types.append({"type_k": name, "type_v": name, "kv_bits": bits, "points": points})
    return {
        "kind": "memory",
        "model": path.name,
        "free_bytes": _device_bytes() or free_host_bytes(),
        "weights_bytes": shape.weights_bytes,
        "types": types,
    }


def _device_bytes() -> int:
    """Free memory of the GPUs, 0 without one."""
    from ..devices import gpus

    return sum(device.free_bytes for device in gpus())
