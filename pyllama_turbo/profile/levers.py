"""The ranked lever map of a model on this machine: what a step is made of, and what would move each part.

The ceiling of a phase is the speed-up if it vanished, all else unchanged: no work on it can gain more.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .events import Profile
from .phases import PHASES
from .table import expert_line, launch_line

if TYPE_CHECKING:
    from .capture import Capture

__all__ = ["Lever", "counted", "evidence", "merged", "ranked"]

# Levers of the lever map by phase; docs/levers.md describes each.
_IDS = {
    "experts": "L1 L2",
    "matmul": "L1",
    "kv_read": "L5",
    "combine": "L5",
    "kv_write": "L3",
    "copy": "L5",
    "rotate": "L7",
    "rope": "L4",
    "elementwise": "L4",
    "rows": "L2",
    "gap": "L6",
}


@dataclass(frozen=True)
class Lever:
    """One line of the map.

    Attributes:
        ids: lever numbers of docs/levers.md.
        phase, name: which part of a step.
        share: its share of the step, 0..1.
        ceiling: speed-up if it vanished.
        lever: what would move it.
        measured: what has been measured about it, from result files; "" if nothing.
    """

    ids: str
    phase: str
    name: str
    share: float
    ceiling: float
    lever: str
    measured: str


def _switch_gain(records: Iterable[Mapping[str, Any]], switch: str, others: tuple[str, ...]) -> list[str]:
    """What turning one switch on gained, by KV pair and depth, all else alike."""
    rates: dict[tuple[Any, ...], dict[bool, float]] = {}
    for record in records:
        if record.get(switch) is None:
            continue
        names = "/".join(dict.fromkeys((record["type_k"], record["type_v"])))
        state = " ".join(f"{name} off" for name in others if record.get(name) is False)
        key = (names, record["n_depth"], record["n_prompt"], record["n_gen"], state)
        rates.setdefault(key, {})[record[switch]] = statistics.median(record["samples_ts"])
    return [
        f"{100 * (pair[True] / pair[False] - 1):+.1f} % ({names}, d {depth}{', ' if state else ''}{state})"
        for (names, depth, _, _, state), pair in rates.items()
        if len(pair) == 2
    ]


def evidence(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What bench records say about a phase: ratios of KV types (the cache's phases), of graphs and of fused experts."""
    rows = [r for r in records if r.get("kind") == "bench" and r.get("status") == "ok" and r.get("n_gen")]
    ratios: dict[int, list[str]] = {}
    for record in rows:
        if record.get("baseline") and record.get("graphs") is not False and record.get("moe_fused") is not False:
            names = f"{record['type_k']}/{record['type_v']}"
            ratios.setdefault(record["n_depth"], []).append(f"{names} {record['ratio']:.2f}x {record['baseline']}")
    found = {}
    if ratios:
        depth = max(ratios)
        found["kv_read"] = f"d {depth}: " + ", ".join(ratios[depth])
    plain = [r for r in rows if r.get("fused") is not False]
    if gains := _switch_gain(plain, "graphs", ("moe_fused",)):
        found["gap"] = "graphs " + "; ".join(gains)
    if gains := _switch_gain(plain, "moe_fused", ("graphs",)):
        found["experts"] = "fused up+gate " + "; ".join(gains)
    return found


def counted(capture: Capture) -> dict[str, str]:
    """What the profile itself says about the levers: launches, experts, writes."""
    found = {"gap": launch_line(capture)}
    if line := expert_line(capture):
        found["experts"] = line
    for row in capture.profile.phases:
        if row.phase in ("elementwise", "kv_write", "kv_read", "rope", "rows"):
            found[row.phase] = f"{row.calls_step:g} calls a step of {row.us_call:,.2f} us"
        if row.phase == "kv_read" and row.gb_s and capture.profile.peak_gb_s:
            found["kv_read"] += f", {100 * row.gb_s / capture.profile.peak_gb_s:.0f} % of the copy rate"
    if capture.launches.fused_top_k:
        found["rows"] = f"{capture.launches.fused_top_k:g} fused top-k a step; {found.get('rows', '')}".rstrip("; ")
    if not capture.profile.share("rotate"):
        found["rotate"] = "no kernel of its own in this step"
    return found


def merged(*sources: Mapping[str, str]) -> dict[str, str]:
    """What several sources say about each phase."""
    keys = dict.fromkeys(key for source in sources for key in source)
    return {key: "; ".join(source[key] for source in sources if source.get(key)) for key in keys}


def ranked(profile: Profile, measured: Mapping[str, str] | None = None) -> list[Lever]:
    """The map, the largest share first; a phase that is known to be absent stands at the end."""
    known = measured or {}
    names = {phase.key: phase for phase in PHASES}
    there = {row.phase for row in profile.phases}
    absent = [key for key in names if key in known and key not in there]
    return [
        Lever(
            _IDS.get(row.phase, "-"),
            row.phase,
            names[row.phase].name,
            row.share,
            1 / (1 - row.share) if row.share < 1 else float("inf"),
            names[row.phase].lever,
            known.get(row.phase, ""),
        )
        for row in sorted(profile.phases, key=lambda r: -r.share)
    ] + [Lever(_IDS.get(key, "-"), key, names[key].name, 0.0, 1.0, names[key].lever, known[key]) for key in absent]
