"""Timed pieces of work, and the numbers they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .phases import GAP, PHASES

__all__ = ["Event", "KernelRow", "PhaseRow", "Profile", "busy_ns", "summarise"]


@dataclass(frozen=True)
class Event:
    """One kernel, copy or operation.

    Attributes:
        name: as the profiler gives it.
        phase: key of its phase.
        start_ns, end_ns: on the profiler's clock.
        device, stream: where it ran; 0, 0 on the CPU.
        bytes: bytes it read and wrote, 0 where not known.
        grid: thread blocks of a kernel in x, y and z; zeros for everything else.
        launch: number that all kernels of one launch share, 0 where not known; a CUDA graph is one launch.
        graph: number of the CUDA graph it belongs to, 0 for a kernel launched alone.
    """

    name: str
    phase: str
    start_ns: int
    end_ns: int
    device: int = 0
    stream: int = 0
    bytes: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    launch: int = 0
    graph: int = 0

    @property
    def ns(self) -> int:
        """Duration."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class KernelRow:
    """All calls of one kernel or operation, per step.

    Attributes:
        name, phase: which.
        us_step: microseconds of a step.
        calls_step: calls in a step.
        us_call: microseconds of a call.
        share: share of the step's time, 0..1.
        gb_s: bytes over time in GB/s, 0 where bytes are not known.
    """

    name: str
    phase: str
    us_step: float
    calls_step: float
    us_call: float
    share: float
    gb_s: float


@dataclass(frozen=True)
class PhaseRow:
    """One phase, per step; fields as `KernelRow`."""

    phase: str
    us_step: float
    calls_step: float
    us_call: float
    share: float
    gb_s: float


@dataclass(frozen=True)
class Profile:
    """A profile of several equal steps.

    Attributes:
        n_steps: steps recorded.
        step_us: mean time of a step from begin to end, microseconds, with the profiler on.
        busy_us: mean time of a step in which something ran.
        phases: in the order of `PHASES`, those that occur.
        kernels: the most expensive first.
        peak_gb_s: measured copy rate of the device, 0 where unknown.
    """

    n_steps: int
    step_us: float
    busy_us: float
    phases: tuple[PhaseRow, ...]
    kernels: tuple[KernelRow, ...]
    peak_gb_s: float = 0.0

    def share(self, phase: str) -> float:
        """Share of a phase, 0 if it does not occur."""
        return next((row.share for row in self.phases if row.phase == phase), 0.0)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Profile:
        """The profile of a result record.

        Raises:
            KeyError, TypeError: the record is none.
        """
        return cls(
            n_steps=record["n_steps"],
            step_us=record["step_us"],
            busy_us=record["busy_us"],
            phases=tuple(PhaseRow(**row) for row in record["phases"]),
            kernels=tuple(KernelRow(**row) for row in record["kernels"]),
            peak_gb_s=record["peak_gb_s"],
        )

    def record(self, **more: Any) -> dict[str, Any]:
        """As a record of a result file."""
        return {"kind": "profile", **asdict(self), **more}


def busy_ns(events: Iterable[Event]) -> int:
    """Time in which at least one event ran: overlapping ones (several streams) count once."""
    total, until = 0, -1
    for start, end in sorted((e.start_ns, e.end_ns) for e in events):
        if end > until:
            total += end - max(start, until)
            until = end
    return total


@dataclass
class _Sum:
    ns: int = 0
    calls: int = 0
    bytes: int = 0

    def add(self, event: Event) -> None:
        self.ns += event.ns
        self.calls += 1
        self.bytes += event.bytes


def _rate(total: _Sum) -> float:
    return total.bytes / total.ns if total.ns else 0.0


def summarise(events: Sequence[Event], n_steps: int, wall_ns: int, peak_gb_s: float = 0.0) -> Profile:
    """Add up events of `n_steps` steps that took `wall_ns` together.

    Shares refer to the whole step, gaps included; with work on several streams at once they can add up to more than 1.

    Raises:
        ValueError: no steps.
    """
    if n_steps < 1:
        raise ValueError("a profile needs at least one step")
    by_phase: dict[str, _Sum] = {}
    by_name: dict[tuple[str, str], _Sum] = {}
    for event in events:
        by_phase.setdefault(event.phase, _Sum()).add(event)
        by_name.setdefault((event.name, event.phase), _Sum()).add(event)
    busy = busy_ns(events)
    wall = max(wall_ns, busy, 1)
    if wall > busy:
        by_phase[GAP] = _Sum(wall - busy)

    def numbers(total: _Sum) -> dict[str, float]:
        return {
            "us_step": total.ns / n_steps / 1e3,
            "calls_step": total.calls / n_steps,
            "us_call": total.ns / total.calls / 1e3 if total.calls else 0.0,
            "share": total.ns / wall,
            "gb_s": _rate(total),
        }

    phases = tuple(PhaseRow(p.key, **numbers(by_phase[p.key])) for p in PHASES if p.key in by_phase)
    kernels = sorted(
        (KernelRow(name, phase, **numbers(total)) for (name, phase), total in by_name.items()), key=lambda r: -r.us_step
    )
    return Profile(n_steps, wall / n_steps / 1e3, busy / n_steps / 1e3, phases, tuple(kernels), peak_gb_s)
