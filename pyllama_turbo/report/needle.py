"""Recall of a fact from a long text, per KV type: how sure the right answer was, by depth, cold and from the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .figure import Figure, Record, good, grouped
from .kinds import css_class, pair_name
from .svg import Axis, Chart

__all__ = ["needle_figures"]


def _cell(trial: dict[str, Any]) -> str:
    return f"{'found' if trial['found'] else 'missed'} ({trial['logprob']:.3f})"


def _line(record: Record, kind: str) -> list[tuple[float, float]]:
    return sorted((100 * trial[kind]["depth"], trial[kind]["logprob"]) for trial in record["trials"])


def _figure(model: str, length: int, records: Sequence[Record]) -> Figure:
    values = [trial[kind]["logprob"] for r in records for trial in r["trials"] for kind in ("cold", "warm")]
    low, high = min(values), max(*values, 0.0)
    room = 0.06 * ((high - low) or 1.0)
    chart = Chart(
        Axis("place of the fact in the text, %", 0, 100),
        Axis("log-probability of the right answer, nats a token", low - room, high + room),
        model,
    )
    for record in records:
        css = css_class(record)
        cold, warm = _line(record, "cold"), _line(record, "warm")
        chart.line(cold, css)
        chart.line(warm, css, dashed=True)
        for trial in record["trials"]:
            for kind, shape in (("cold", "circle"), ("warm", "square")):
                found = trial[kind]
                tip = f"{pair_name(record)}, {kind}: {found['text'].strip()!r}, {found['logprob']:.3f}"
                chart.point(100 * found["depth"], found["logprob"], css, tip, shape=shape)
        chart.end_label(cold[-1][1], pair_name(record), css)
    depths = [trial["cold"]["depth"] for trial in records[0]["trials"]]
    return Figure(
        f"Recall of a fact: {model}, {length:,} tokens",
        "Nearer to 0 is surer. Solid lines and circles: the text computed anew; dashed lines and squares: the text "
        "found in the cache and only the question computed. Found: the greedy answer begins with the fact.",
        chart.render(),
        ("K/V", *(f"{100 * d:.0f} %, {way}" for d in depths for way in ("cold", "cached"))),
        tuple(
            (pair_name(r), *(cell for trial in r["trials"] for cell in (_cell(trial["cold"]), _cell(trial["warm"]))))
            for r in records
        ),
    )


def needle_figures(records: Sequence[Record]) -> list[Figure]:
    """A figure for each model and length; trials at other depths than the first record's are left out."""
    found = []
    for (model, length, _), group in grouped(good(records, "needle"), "model", "length", "backend").items():
        same = [r for r in group if r["depths"] == group[0]["depths"]]
        latest = list({(r["type_k"], r["type_v"]): r for r in same}.values())
        found.append(_figure(model, length, latest))
    return found
