"""The ranked lever map of a model on this machine: what a step is made of, and what would move each part.

The ceiling of a phase is the speed-up if it vanished, all else unchanged: no work on it can gain more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .events import Profile
from .phases import PHASES

__all__ = ["Lever", "evidence", "ranked"]

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


def evidence(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What bench records say about a phase: ratios of KV types (the cache's phases) and of CUDA graphs (gaps)."""
    ratios: dict[int, list[str]] = {}
    graphs: dict[tuple[Any, ...], dict[bool, float]] = {}
    for record in records:
        if record.get("kind") != "bench" or record.get("status") != "ok" or record.get("n_gen", 0) == 0:
            continue
        names = f"{record['type_k']}/{record['type_v']}"
        if record.get("baseline"):
            ratios.setdefault(record["n_depth"], []).append(f"{names} {record['ratio']:.2f}x {record['baseline']}")
        if record.get("graphs") is not None:
            key = (names, record["n_depth"], record["n_gen"])
            graphs.setdefault(key, {})[record["graphs"]] = record["avg_ts"]
    found = {}
    if ratios:
        depth = max(ratios)
        found["kv_read"] = f"d {depth}: " + ", ".join(ratios[depth])
    both = {key: rates for key, rates in graphs.items() if len(rates) == 2}
    if both:
        found["gap"] = "; ".join(
            f"graphs {100 * (rates[True] / rates[False] - 1):+.0f} % ({key[0]}, d {key[1]})"
            for key, rates in both.items()
        )
    return found


def ranked(profile: Profile, measured: Mapping[str, str] | None = None) -> list[Lever]:
    """The map, the largest share first."""
    known = measured or {}
    names = {phase.key: phase for phase in PHASES}
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
    ]
