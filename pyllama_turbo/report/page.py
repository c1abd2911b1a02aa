"""The report: one HTML file that needs nothing else, and the same content as Markdown."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from .kinds import pair_name
from .plots import Figure, figures

__all__ = ["STYLE", "failed_rows", "html_page", "markdown_page"]

Record = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; --bg: #fff; --fg: #1c1e21; --muted: #667; --grid: #e4e6ea; --rule: #c9ccd3;
  --up-hi: #33363c; --up-mid: #6d727b; --up-lo: #9ba1ab; --s4: #0b3d91; --s3: #2769d6; --s2: #5f9bea;
  --t4: #8a2c02; --t3: #d1560b; --t2: #ee9345; --inside: #fff;
  --p1: #3b5b92; --p2: #7b94c4; --p3: #c2410c; --p4: #ea8a4c; --p5: #7a3b8f; --p6: #a87bb8; --p7: #b8a13a; --p8: #5f8f4e;
  --p9: #3d8f87; --p10: #8a8f98; --p11: #b0727e; --p12: #777; --p13: #d9dce1; }
@media (prefers-color-scheme: dark) { :root { --bg: #15171a; --fg: #e6e8eb; --muted: #9aa0aa; --grid: #2a2d33;
  --rule: #43474f; --up-hi: #e2e4e8; --up-mid: #a5abb5; --up-lo: #7b818b; --s4: #a9c9ff; --s3: #6ea3f5; --s2: #4578c4;
  --t4: #ffc79b; --t3: #f58f45; --t2: #bd6a28; --inside: #111; --p1: #8aa9e0; --p2: #5c78ad; --p3: #f0834a; --p4: #b9622c;
  --p5: #c292d6; --p6: #8a5f9b; --p7: #d8c46a; --p8: #8fc17d; --p9: #6cc4bb; --p10: #7d838d; --p11: #d99aa6; --p12: #999;
  --p13: #33373e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 60rem; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; } .note { color: var(--muted); }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { font-weight: 600; border-bottom-color: var(--rule); } th:first-child, td:first-child { text-align: left; padding-left: 0; }
.facts td { text-align: left; white-space: normal; } .wide { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; margin: .5rem 0; } svg text { font: 12px system-ui, sans-serif; fill: var(--fg); }
.grid { stroke: var(--grid); } .tick { fill: var(--muted) !important; font-size: 11px !important; } .axis { fill: var(--muted) !important; }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; } .band { fill: var(--c); opacity: .16; }
.mark { fill: var(--c); stroke: var(--bg); } .error { stroke: var(--c); stroke-width: 1.5; opacity: .7; }
svg .label { fill: var(--c, var(--fg)); } svg .muted { fill: var(--muted); } .pareto { --c: var(--rule); stroke-width: 1.5; }
.level { stroke: var(--muted); stroke-dasharray: 3 4; } svg .inside { fill: var(--inside); font-size: 11px; }
.up.bhi { --c: var(--up-hi); } .up.bmid { --c: var(--up-mid); } .up.blo { --c: var(--up-lo); }
.scalar.b4 { --c: var(--s4); } .scalar.b3 { --c: var(--s3); } .scalar.b2 { --c: var(--s2); }
.tcq.b4 { --c: var(--t4); } .tcq.b3 { --c: var(--t3); } .tcq.b2 { --c: var(--t2); }
.p-experts { fill: var(--p1); } .p-matmul { fill: var(--p2); } .p-kv_read { fill: var(--p3); } .p-combine { fill: var(--p4); }
.p-kv_write { fill: var(--p5); } .p-copy { fill: var(--p6); } .p-rotate { fill: var(--p7); } .p-rope { fill: var(--p8); }
.p-elementwise { fill: var(--p9); } .p-rows { fill: var(--p10); } .p-recurrent { fill: var(--p11); } .p-other { fill: var(--p12); }
.p-gap { fill: var(--p13); }
"""

_FACTS = (
    ("time", "measured"), ("cpu", "processor"), ("n_cores", "cores"), ("gpus", "GPU"), ("driver", "driver"),
    ("backend", "backend"), ("simd", "vector instructions"), ("digest", "library digest"),
    ("upstream_commit", "llama.cpp commit"), ("package", "pyllama_turbo"), ("system", "system"), ("command", "command"),
)  # fmt: skip


def _facts(record: Record) -> list[tuple[str, str]]:
    found = []
    for key, name in _FACTS:
        value = record.get(key)
        text = ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)
        if text:
            found.append((name, text))
    return found


def _provenances(records: Sequence[Record]) -> list[Record]:
    """Distinct origins: runs that differ only in time and command line are one, the latest shown."""
    found: dict[tuple[str, ...], Record] = {}
    for record in records:
        if record.get("kind") == "provenance":
            found[tuple(str(record.get(k)) for k in ("digest", "backend", "cpu", "gpus", "driver", "system"))] = record
    return list(found.values())


def failed_rows(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Every row that could not be measured: what, in which setting, why."""
    return [
        (
            str(r.get("kind")),
            f"{r.get('model_filename') or r.get('model', '')} {pair_name(r) if 'type_k' in r else ''}".strip(),
            str(r.get("reason", "")),
        )
        for r in records
        if r.get("status") == "failed"
    ]


def _html_table(headers: Sequence[str], rows: Sequence[Sequence[str]], css: str = "") -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in headers)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if headers else ""
    return f'<div class="wide"><table class="{css}">{top}<tbody>\n{body}\n</tbody></table></div>'


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
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [_html_table((), _facts(record), "facts") for record in _provenances(records)]
    drawn = figures(records)
    parts += [_html_figure(figure) for figure in drawn]
    if not drawn:
        parts.append("<p>These records hold nothing to draw.</p>")
    if failed := failed_rows(records):
        parts.append(
            "<h2>What could not be measured</h2>" + _html_table(("kind", "setting", "reason"), failed, "facts")
        )
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
    parts = [f"# {title}"]
    for record in _provenances(records):
        parts.append(
            "\n".join(f"* {name}: {f'`{text}`' if name == 'command' else text}" for name, text in _facts(record))
        )
    for figure in figures(records):
        parts.append(f"## {figure.title}\n{figure.note}\n\n{_markdown_table(figure.headers, figure.rows)}")
    if failed := failed_rows(records):
        parts.append("## What could not be measured\n" + _markdown_table(("kind", "setting", "reason"), failed))
    return "\n\n".join(parts) + "\n"
