"""A small SVG chart writer: axes, lines with bands, points with labels, stacked bars.

Colours come from CSS classes, so that one picture serves light and dark pages. Coordinates are in user units of a fixed
view box; the page scales it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Axis", "Chart", "format_tick", "text_element"]

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 150, 24, 56
_LABEL_HEIGHT = 14
_CHARACTER = 6.6  # width of a letter at 12 units, near enough to keep labels apart


def format_tick(value: float, unit: str = "") -> str:
    """A number as short as it can be said: 4k, 0.05, 12 GiB."""
    if unit == "bytes":
        for name, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.0f} B"
    if unit == "tokens" and abs(value) >= 1024:
        return f"{value / 1024:.4g}k"
    if unit == "percent":
        return f"{100 * value:.3g} %"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"


def text_element(css: str, x: float, y: float, text: str, *, anchor: str = "start", turn: str = "") -> str:
    """A text element; `text` is escaped here."""
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{html.escape(text)}</text>'


@dataclass
class Axis:
    """One axis.

    Attributes:
        label: what it shows, with the unit.
        low, high: range.
        log: logarithmic, base 10 (or 2 for tokens).
        unit: of the ticks: "", "bytes", "tokens" or "percent".
    """

    label: str
    low: float
    high: float
    log: bool = False
    unit: str = ""

    def place(self, value: float) -> float:
        """Position within the range, 0..1 where it is inside."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low / 10)) - low) / ((high - low) or 1)
        return (value - self.low) / ((self.high - self.low) or 1)

    def ticks(self) -> list[float]:
        """Values to label."""
        if self.log:
            return self._log_ticks()
        step = _round_step((self.high - self.low) / 5, self.unit)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        if self.unit in ("tokens", "bytes"):
            first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
            step = max(1, round((last - first) / 7))
            return [2.0**i for i in range(first, last + 1, step)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if len(decades) <= 4 else (1,)
        values = [f * 10.0**d for d in decades for f in factors]
        return [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]


def _round_step(raw: float, unit: str) -> float:
    if raw <= 0:
        return 1.0
    base = 2.0 ** math.floor(math.log2(raw)) if unit in ("tokens", "bytes") else 10.0 ** math.floor(math.log10(raw))
    if unit in ("tokens", "bytes"):
        return base if raw < 1.5 * base else 2 * base
    return next(base * f for f in (1, 2, 5, 10) if raw <= base * f * 1.0001)


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places moved so that neighbours are at least `gap` apart, with the least squared displacement.

    Less i * gap, the result has to ascend: that is isotonic regression, solved by pooling neighbours that disagree.
    """
    pools: list[tuple[float, int]] = []
    for i, place in enumerate(places):
        mean, size = place - i * gap, 1
        while pools and pools[-1][0] > mean:
            last, n = pools.pop()
            mean, size = (last * n + mean * size) / (n + size), n + size
        pools.append((mean, size))
    flat = [mean for mean, size in pools for _ in range(size)]
    return [value + i * gap for i, value in enumerate(flat)]


@dataclass
class Chart:
    """A chart under construction; `render` gives the SVG element."""

    x: Axis
    y: Axis
    title: str
    parts: list[str] = field(default_factory=list)
    labels: list[tuple[float, float, str, str]] = field(default_factory=list)
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Position of a value in the view box."""
        across, up = self.x.place(x), self.y.place(y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], css: str, *, dashed: bool = False) -> None:
        """A line through points."""
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (self.at(*p) for p in points))
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self.parts.append(f'<polyline class="line {css}" points="{path}"{dash}/>')

    def band(self, points: Sequence[tuple[float, float, float]], css: str) -> None:
        """An area between the low and the high value at each x."""
        upper = [self.at(x, high) for x, _, high in points]
        lower = [self.at(x, low) for x, low, _ in reversed(points)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in upper + lower)
        self.parts.append(f'<polygon class="band {css}" points="{path}"/>')

    def point(self, x: float, y: float, css: str, tip: str, radius: float = 4.5, shape: str = "circle") -> None:
        """A marker with a tooltip."""
        px, py = self.at(x, y)
        self.boxes.append((px - radius, py - radius, px + radius, py + radius))
        if shape == "square":
            size = f'width="{2 * radius:.1f}" height="{2 * radius:.1f}"'
            tag, body = "rect", f'x="{px - radius:.1f}" y="{py - radius:.1f}" {size}'
        elif shape == "diamond":
            r = 1.3 * radius
            corners = ((px, py - r), (px + r, py), (px, py + r), (px - r, py))
            tag, body = "polygon", f'points="{" ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in corners)}"'
        else:
            tag, body = "circle", f'cx="{px:.1f}" cy="{py:.1f}" r="{radius:.1f}"'
        self.parts.append(f'<{tag} class="mark {css}" {body}><title>{html.escape(tip)}</title></{tag}>')

    def error(self, x: float, low: float, high: float, css: str) -> None:
        """A vertical bar from low to high."""
        (px, bottom), (_, top) = self.at(x, low), self.at(x, high)
        self.parts.append(f'<line class="error {css}" x1="{px:.1f}" x2="{px:.1f}" y1="{bottom:.1f}" y2="{top:.1f}"/>')

    def level(self, y: float, text: str) -> None:
        """A horizontal line over the whole width, with its name."""
        left, py = self.at(self.x.low, y)
        right, _ = self.at(self.x.high, y)
        self.parts.append(f'<line class="level" x1="{left:.1f}" x2="{right:.1f}" y1="{py:.1f}" y2="{py:.1f}"/>')
        self.parts.append(text_element("label muted", left + 6, py - 5, text))

    def end_label(self, y: float, text: str, css: str, x: float | None = None) -> None:
        """A label beside the end of a line, at the right edge or at `x`; those of one place are kept apart."""
        px, py = self.at(self.x.high if x is None else x, y)
        self.labels.append((px + 8, py, text, css))

    def near_label(self, x: float, y: float, text: str, css: str) -> None:
        """A label beside a point, where it covers no marker and no other label, as far as there is such a place."""
        px, py = self.at(x, y)
        width = _CHARACTER * len(text)
        places = [
            (8, 4),
            (-8 - width, 4),
            (-width / 2, -9),
            (-width / 2, 18),
            (8, -8),
            (8, 16),
            (-8 - width, -8),
            (-8 - width, 16),
            (8, 26),
            (-width / 2, -22),
            (-width / 2, 31),
        ]
        best = min(places, key=lambda d: self._clash(px + d[0], py + d[1], width))
        left, base = px + best[0], py + best[1]
        self.boxes.append((left, base - 10, left + width, base + 3))
        self.parts.append(text_element(f"label {css}", left, base, text))

    def _clash(self, left: float, base: float, width: float) -> float:
        box = (left, base - 10, left + width, base + 3)
        covered = sum(
            max(0.0, min(box[2], o[2]) - max(box[0], o[0])) * max(0.0, min(box[3], o[3]) - max(box[1], o[1]))
            for o in self.boxes
        )
        outside = (
            max(0.0, LEFT - left) + max(0.0, box[2] - WIDTH) + max(0.0, TOP - box[1]) + max(0.0, base - HEIGHT + BOTTOM)
        )
        return covered + 50 * outside

    def _spread_labels(self) -> list[str]:
        """Labels of line ends, moved apart as little as possible where they would overlap."""
        found = []
        for place in dict.fromkeys(left for left, *_ in self.labels):
            ordered = sorted((item for item in self.labels if item[0] == place), key=lambda item: item[1])
            bases = _apart([wanted + 4 for _, wanted, _, _ in ordered], _LABEL_HEIGHT)
            found += [
                text_element(f"label {css}", left, base, text)
                for (left, _, text, css), base in zip(ordered, bases, strict=True)
            ]
        return found

    def _axes(self) -> list[str]:
        parts = []
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value in self.y.ticks():
            _, py = self.at(self.x.low, value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{py:.1f}" y2="{py:.1f}"/>')
            parts.append(text_element("tick", LEFT - 8, py + 4, format_tick(value, self.y.unit), anchor="end"))
        for value in self.x.ticks():
            px, _ = self.at(value, self.y.low)
            parts.append(f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{bottom}"/>')
            parts.append(text_element("tick", px, bottom + 18, format_tick(value, self.x.unit), anchor="middle"))
        parts.append(text_element("axis", (LEFT + right) / 2, HEIGHT - 12, self.x.label, anchor="middle"))
        centre = (TOP + bottom) / 2
        turn = f' transform="rotate(-90 14 {centre:.0f})"'
        parts.append(text_element("axis", 14, centre, self.y.label, anchor="middle", turn=turn))
        return parts

    def render(self) -> str:
        """The SVG element."""
        body = "\n".join([*self._axes(), *self.parts, *self._spread_labels()])
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(self.title)}">'
            f"<title>{html.escape(self.title)}</title>\n{body}\n</svg>"
        )
