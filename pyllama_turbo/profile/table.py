"""Profiles as tables: phases, kernels, two side by side."""

from __future__ import annotations

from .events import Profile
from .phases import PHASES, short_name

__all__ = ["compare_rows", "kernel_rows", "phase_rows"]

Cell = str | int | float | None
_NAMES = {phase.key: phase.name for phase in PHASES}


def _roofline(gb_s: float, peak: float) -> tuple[Cell, Cell]:
    return (round(gb_s, 1) if gb_s else None, f"{100 * gb_s / peak:.0f} %" if gb_s and peak else None)


def phase_rows(profile: Profile) -> tuple[list[str], list[list[Cell]]]:
    """Headers and cells, a line per phase, the largest first."""
    headers = ["PHASE", "SHARE %", "US/STEP", "CALLS", "US/CALL", "GB/S", "OF COPY RATE"]
    lines: list[list[Cell]] = [
        [
            _NAMES[row.phase],
            round(100 * row.share, 1),
            round(row.us_step, 1),
            round(row.calls_step, 1),
            round(row.us_call, 2),
            *_roofline(row.gb_s, profile.peak_gb_s),
        ]
        for row in sorted(profile.phases, key=lambda r: -r.share)
    ]
    return headers, lines


def kernel_rows(profile: Profile, limit: int = 20) -> tuple[list[str], list[list[Cell]]]:
    """Headers and cells, a line per kernel or operation, the most expensive first."""
    headers = ["NAME", "PHASE", "SHARE %", "US/STEP", "CALLS", "US/CALL"]
    lines: list[list[Cell]] = [
        [
            short_name(row.name),
            row.phase,
            round(100 * row.share, 1),
            round(row.us_step, 1),
            round(row.calls_step, 1),
            round(row.us_call, 2),
        ]
        for row in profile.kernels[:limit]
    ]
    return headers, lines


def compare_rows(a: Profile, b: Profile) -> tuple[list[str], list[list[Cell]]]:
    """Headers and cells: microseconds of a step by phase in both, and their difference, the largest change first."""
    of_a, of_b = ({row.phase: row.us_step for row in profile.phases} for profile in (a, b))
    changes = sorted(of_a.keys() | of_b.keys(), key=lambda key: -abs(of_b.get(key, 0.0) - of_a.get(key, 0.0)))
    lines: list[list[Cell]] = [
        [
            _NAMES[key],
            round(of_a.get(key, 0.0), 1),
            round(of_b.get(key, 0.0), 1),
            round(of_b.get(key, 0.0) - of_a.get(key, 0.0), 1),
            f"{100 * (of_b.get(key, 0.0) - of_a.get(key, 0.0)) / a.step_us:+.1f} %",
        ]
        for key in changes
    ]
    lines.append(["step", round(a.step_us, 1), round(b.step_us, 1), round(b.step_us - a.step_us, 1),
                  f"{100 * (b.step_us / a.step_us - 1):+.1f} %"])  # fmt: skip
    return ["PHASE", "A US/STEP", "B US/STEP", "B - A", "OF A'S STEP"], lines
