"""Which KV pair to use: the cheapest that passes a quality level and fits into memory, with its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .gates import Gate, judge
from .reference import divergence_of

__all__ = ["CANDIDATES", "Advice", "Candidate", "choose", "with_quality"]

# Keys never get fewer bits than values: their errors cost several times more.
CANDIDATES: tuple[tuple[str, str], ...] = (
    ("turbo2_tcq", "turbo2_tcq"),
    ("turbo3_tcq", "turbo2_tcq"),
    ("turbo3", "turbo3"),
    ("turbo3_tcq", "turbo3_tcq"),
    ("turbo4_tcq", "turbo3_tcq"),
    ("turbo4", "turbo4"),
    ("turbo4_tcq", "turbo4_tcq"),
    ("q8_0", "turbo3_tcq"),
    ("q8_0", "turbo4_tcq"),
    ("q8_0", "q8_0"),
    ("f16", "f16"),
)


@dataclass(frozen=True)
class Candidate:
    """One pair.

    Attributes:
        type_k, type_v: the pair.
        kv_bytes: bytes of its cache at the wanted context.
        total_bytes: with weights and compute buffers.
        fits: whether that is within the limit.
        kld, kld_se, same_top: measured quality; None if it was not measured.
        passed: whether it passed the gates; None if it was not measured.
        tok_s: decode rate behind `speed_depth` tokens, None if it was not measured.
        reason: why it is not recommended, "" for one that could be.
    """

    type_k: str
    type_v: str
    kv_bytes: int
    total_bytes: int
    fits: bool
    kld: float | None = None
    kld_se: float | None = None
    same_top: float | None = None
    passed: bool | None = None
    tok_s: float | None = None
    speed_depth: int = 0
    reason: str = ""

    @property
    def pair(self) -> tuple[str, str]:
        """K and V type."""
        return self.type_k, self.type_v


@dataclass(frozen=True)
class Advice:
    """The recommendation, or None with what stands against every candidate."""

    chosen: Candidate | None
    candidates: tuple[Candidate, ...]


def with_quality(candidate: Candidate, record: Mapping[str, Any], gates: Sequence[Gate]) -> Candidate:
    """The candidate with the numbers of its record."""
    if record.get("status") != "ok":
        return replace(candidate, passed=False, reason=str(record.get("reason", "not measured")))
    verdict = judge(divergence_of(record), gates)
    failed = [f"{check.gate.metric} {check.value:.4g}, {check.gate}" for check in verdict.checks if not check.passed]
    return replace(
        candidate,
        kld=record["kld_mean"],
        kld_se=record["kld_se"],
        same_top=record["same_top"],
        passed=verdict.passed,
        reason="; ".join(failed),
    )


def choose(candidates: Sequence[Candidate]) -> Advice:
    """Of those that fit and pass, the one with the fewest bytes; at equal bytes the better quality."""
    good = [c for c in candidates if c.fits and c.passed]
    chosen = min(good, key=lambda c: (c.kv_bytes, c.kld or 0.0), default=None)
    return Advice(chosen, tuple(candidates))
