"""Stacked horizontal bars: what a step is made of, one bar per setting."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from .svg import text_element

__all__ = ["stacked_bars"]

_WIDTH, _ROW, _LEFT, _TOP = 760, 44, 170, 10
_LEGEND_ROW, _LEGEND_COLUMN = 20, 245
_SMALLEST_LABEL = 46  # a number is written into a part that has room for it


def stacked_bars(
    bars: Sequence[tuple[str, Mapping[str, float], float]], names: Mapping[str, str], unit: str, title: str
) -> str:
    """An SVG element.

    Args:
        bars: label, part key -> value on one scale for all, and the total to print.
        names: part key -> name, in drawing order; parts not in it are left out.
        unit: written behind the total of each bar.
        title: for screen readers.
    """
    longest = max((sum(parts.values()) for _, parts, _ in bars), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 110) / longest
    used = [key for key in names if any(parts.get(key) for _, parts, _ in bars)]
    body = []
    for row, (label, parts, total) in enumerate(bars):
        y = _TOP + row * _ROW
        x = float(_LEFT)
        body.append(text_element("label", _LEFT - 10, y + 21, label, anchor="end"))
        for key in used:
            value = parts.get(key, 0.0)
            width = value * scale
            tip = html.escape(f"{names[key]}: {value:,.0f} {unit}")
            place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 14}"'
            body.append(f'<rect class="part p-{key}" {place}><title>{tip}</title></rect>')
            if width > _SMALLEST_LABEL:
                body.append(text_element(f"inside on-{key}", x + width / 2, y + 20, f"{value:,.0f}", anchor="middle"))
            x += width
        body.append(text_element("tick", x + 8, y + 20, f"{total:,.0f} {unit}"))
    legend_top = _TOP + len(bars) * _ROW + 6
    for i, key in enumerate(used):
        x, y = 12 + (i % 3) * _LEGEND_COLUMN, legend_top + (i // 3) * _LEGEND_ROW
        body.append(f'<rect class="part p-{key}" x="{x}" y="{y}" width="12" height="12"/>')
        body.append(text_element("tick", x + 18, y + 10, names[key]))
    height = legend_top + -(-len(used) // 3) * _LEGEND_ROW + 4
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(title)}">'
        f"<title>{html.escape(title)}</title>\n" + "\n".join(body) + "\n</svg>"
    )
