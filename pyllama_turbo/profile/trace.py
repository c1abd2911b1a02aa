"""Profiles as Chrome trace JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .events import Event
from .phases import PHASES, short_name

__all__ = ["trace_events", "write_trace"]

_NAMES = {phase.key: phase.name for phase in PHASES}


def trace_events(events: Sequence[Event]) -> list[dict[str, object]]:
    """Complete events ("X"), times in microseconds from the first; one track per device and stream."""
    if not events:
        return []
    origin = min(event.start_ns for event in events)
    tracks = sorted({(event.device, event.stream) for event in events})
    found: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": device, "tid": stream, "args": {"name": f"stream {stream}"}}
        for device, stream in tracks
    ]
    found += [
        {
            "ph": "X",
            "name": short_name(event.name),
            "cat": _NAMES.get(event.phase, event.phase),
            "pid": event.device,
            "tid": event.stream,
            "ts": (event.start_ns - origin) / 1e3,
            "dur": event.ns / 1e3,
            "args": {"full name": event.name},
        }
        for event in events
    ]
    return found


def write_trace(path: Path, events: Sequence[Event]) -> None:
    """Write a trace file."""
    path.write_text(json.dumps({"traceEvents": trace_events(events), "displayTimeUnit": "ms"}), encoding="utf-8")
