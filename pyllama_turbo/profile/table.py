"""Profiles as tables: phases, kernels, two side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .events import Profile
from .phases import PHASES, short_name

if TYPE_CHECKING:
    from .capture import Capture

__all__ = ["compare_rows", "expert_line", "kernel_rows", "launch_line", "phase_rows", "summary_lines"]

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


def launch_line(capture: Capture) -> str:
    """How a step's kernels were launched, in one line."""
    counted = capture.launches
    if capture.method != "cupti":
        return f"{counted.kernels:,.0f} operations a step"
    graphs = f"{counted.graph_kernels:,.0f} in {counted.graph_launches:,.1f} launches of CUDA graphs"
    return f"{counted.kernels:,.0f} kernels a step: {graphs}, {counted.alone:,.0f} launched alone"


def expert_line(capture: Capture) -> str:
    """What the expert matmul does, in one line; "" for a model without experts."""
    found = capture.experts
    if found is None:
        return ""
    share = f" = {100 * found.of_peak:.0f} % of the copy rate" if found.of_peak else ""
    layers = found.separate or found.merged
    if found.separate:
        fusion = f"up and gate are separate and ran as one in {found.fired:g} of {layers} layers"
    else:
        fusion = f"up and gate are one matrix in all {layers} layers: there is nothing to fuse"
    batch = f", {found.batched:g} experts a call" if found.batched else ""
    calls = f"{found.calls_step:g} calls a step of {found.us_call:,.1f} us{batch}"
    return f"expert matmul: {calls}, {found.gb_s:,.1f} GB/s{share}; {fusion}"


def summary_lines(capture: Capture) -> list[str]:
    """What the tables do not say: launches, norms, experts."""
    row = next((r for r in capture.profile.phases if r.phase == "elementwise"), None)
    lines = [launch_line(capture)]
    if row is not None:
        lines.append(f"norm and elementwise: {row.calls_step:g} launches a step of {row.us_call:,.2f} us")
    return [line for line in (*lines, expert_line(capture)) if line]
