"""The report: one HTML file that needs nothing else, and the same content as Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from .figure import Figure, Record
from .kinds import pair_name
from .origins import Origin, origins
from .plots import figures

__all__ = ["STYLE", "failed_rows", "html_page", "markdown_page"]

ORIGINS_ABOVE = 2  # as many machines or libraries are named before the figures; more come behind them
ORIGINS_TITLE = "How it was measured"
STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def _pair(record: Record) -> str:
    return pair_name(record) if "type_k" in record else ""


def failed_rows(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Every row that could not be measured: what, in which setting, why."""
    return [
        (
            str(r.get("kind")),
            str(r.get("what") or f"{r.get('model_filename') or r.get('model', '')} {_pair(r)}".strip()),
            str(r.get("reason", "")),
        )
        for r in records
        if r.get("status", "ok") != "ok"
    ]


def _html_table(headers: Sequence[str], rows: Sequence[Sequence[str]], css: str = "") -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in headers)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if headers else ""
    return f'<div class="wide"><table class="{css}">{top}<tbody>\n{body}\n</tbody></table></div>'


def _html_origin(origin: Origin) -> str:
    commands = "\n".join(f"<code>{html.escape(command)}</code>" for command in origin.commands)
    return f'<div class="origin"><p>{html.escape("; ".join(origin.facts))}</p>\n{commands}</div>'


def _place_origins(shown: list[str], pointer: str, heading: str) -> tuple[list[str], list[str]]:
    """What stands above and what below the figures: a few origins as they are; `pointer` and a section if many."""
    if len(shown) <= ORIGINS_ABOVE:
        return shown, []
    return [pointer.format(f"{len(shown)} combinations of machine and library.")], [heading, *shown]


def _html_figure(figure: Figure) -> str:
    return (
        f"<h2>{html.escape(figure.title)}</h2>\n<p class='note'>{html.escape(figure.note)}</p>\n{figure.svg}\n"
        f"{_html_table(figure.headers, figure.rows)}"
    )


def html_page(records: Sequence[Record], title: str = "pyllama_turbo report") -> str:
    """The page as text.

    Args:
        records: of result files, provenance included.
        title: heading.
    """
    above, below = _place_origins(
        [_html_origin(origin) for origin in origins(records)],
        f'<p class="note"><a href="#measured">{ORIGINS_TITLE}</a>: {{}}</p>',
        f'<h2 id="measured">{ORIGINS_TITLE}</h2>',
    )
    parts = [f"<h1>{html.escape(title)}</h1>", *above]
    drawn = figures(records)
    parts += [_html_figure(figure) for figure in drawn]
    if not drawn:
        parts.append("<p>These records hold nothing to draw.</p>")
    if failed := failed_rows(records):
        parts.append(
            "<h2>What could not be measured</h2>" + _html_table(("kind", "setting", "reason"), failed, "facts")
        )
    parts += below
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "| " + " | ".join(headers) + " |",
        "|" + "|".join("---:" if i else "---" for i in range(len(headers))) + "|",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def markdown_page(records: Sequence[Record], title: str = "Results") -> str:
    """The tables of the page as Markdown."""
    above, below = _place_origins(
        [
            "\n".join([f"Measured on: {'; '.join(origin.facts)}", *(f"* `{command}`" for command in origin.commands)])
            for origin in origins(records)
        ],
        f"[{ORIGINS_TITLE}](#{ORIGINS_TITLE.lower().replace(' ', '-')}): {{}}",
        f"## {ORIGINS_TITLE}",
    )
    parts = [f"# {title}", *above]
    for figure in figures(records):
        parts.append(f"## {figure.title}\n{figure.note}\n\n{_markdown_table(figure.headers, figure.rows)}")
    if failed := failed_rows(records):
        parts.append("## What could not be measured\n" + _markdown_table(("kind", "setting", "reason"), failed))
    parts += below
    return "\n\n".join(parts) + "\n"
