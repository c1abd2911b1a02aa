"""What every command prints with: results on stdout, progress and errors on stderr, colour only where it is wanted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Cell = str | int | float | None


def colour(stream: TextIO) -> bool:
    """Whether `stream` gets colours: a terminal, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def note(text: str) -> None:
    """A line on stderr."""
    click.echo(text, err=True)


def _error_line(message: str) -> None:
    label = click.style("error:", fg="red", bold=True) if colour(sys.stderr) else "error:"
    note(f"{label} {message}")


def show_usage_error(error: click.ClickException) -> None:
    """What is wrong with the command line, and where its help is."""
    _error_line(error.format_message())
    context = getattr(error, "ctx", None)
    if context is not None:
        note(f"hint: {context.command_path} --help")


def show_error(error: BaseException) -> None:
    """One line that says what is wrong, and one that says what to do about it."""
    _error_line(getattr(error, "message", None) or str(error) or type(error).__name__)
    context = click.get_current_context(silent=True)
    if context is not None and (context.find_root().obj or {}).get("verbose"):
        for line in getattr(error, "native_log", ()):
            note(f"  | {line}")
    if hint := getattr(error, "hint", ""):
        note(f"hint: {hint}")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_json(value: Any) -> None:
    """The value as indented JSON on stdout."""
    click.echo(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def number(value: Cell) -> str:
    """A cell as text: integers with thousands separators, floats with what matters of them, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".") if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def size(n_bytes: int) -> str:
    """Bytes for people: 1.25 GiB."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return ""


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """A table on stdout: coloured on a terminal, aligned plain text anywhere else. Numbers are right-aligned."""
    if colour(sys.stdout):
        _rich_table(headers, rows)
        return
    cells = [[number(c) for c in row] for row in rows]
    widths = [max([len(h), *(len(row[i]) for row in cells)]) for i, h in enumerate(headers)]
    right = [_numeric(rows, i) for i in range(len(headers))]
    for line in ([str(h) for h in headers], *cells):
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        click.echo("  ".join(parts).rstrip())


def _numeric(rows: Sequence[Sequence[Cell]], column: int) -> bool:
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(v, (int, float)) for v in values)


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, header in enumerate(headers):
        table.add_column(header, justify="right" if _numeric(rows, i) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(number(c) for c in row))
    Console().print(table)


def print_facts(facts: Sequence[tuple[str, Cell]]) -> None:
    """Lines of the form `name  value` on stdout."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        label = name.ljust(width)
        click.echo(f"{click.style(label, bold=True) if colour(sys.stdout) else label}  {number(value)}")


Update = Callable[[float], None]


class _Bar:
    """A bar on stderr that appears with its first update."""

    def __init__(self, label: str, total: float, as_bytes: bool) -> None:
        self._label, self._total, self._as_bytes = label, total, as_bytes
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: float) -> None:
        """Show that `done` of the total is reached; the first call draws the bar."""
        if self._progress is None or self._task is None:
            self._start()
        else:
            self._progress.update(self._task, completed=done)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn

        count = DownloadColumn() if self._as_bytes else TaskProgressColumn()
        console = Console(stderr=True, no_color=not colour(sys.stderr))
        columns = (TextColumn("{task.description}"), BarColumn(), count)
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(self._label, total=self._total)
        self._progress.start()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def progress(label: str, total: float = 1.0, *, as_bytes: bool = False) -> Iterator[Update]:
    """A bar on stderr while the block runs, gone afterwards; nothing where stderr is no terminal.

    The block gets a function that takes how much of `total` is done. The bar appears with its first call.
    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    bar = _Bar(label, total, as_bytes)
    try:
        yield bar.update
    finally:
        bar.stop()
