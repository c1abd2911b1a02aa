"""The head of the page: on what machine, with which library and by which commands its numbers were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figure import Record

__all__ = ["Origin", "origins"]


@dataclass(frozen=True)
class Origin:
    """One machine and library.

    Attributes:
        facts: what it is, in words, the most telling first.
        commands: every command that measured on it, in the order of the records.
    """

    facts: tuple[str, ...]
    commands: tuple[str, ...]


def _named(name: str, value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")
    return f"{name} {text}".strip() if text else ""


def _facts(record: Record) -> tuple[str, ...]:
    """Facts of a provenance record as short phrases; clocks and dates are told apart from these (see `origins`)."""
    cores = f", {record['n_cores']} cores" if record.get("n_cores") else ""
    found = (
        _named("", record.get("gpus")),
        _named("driver", record.get("driver")),
        _named("", f"{record.get('cpu', '')}{cores}"),
        _named("", record.get("system")),
        _named("backend", record.get("backend")),
        _named("", record.get("simd")),
        _named("library", record.get("digest")),
        _named("llama.cpp", record.get("upstream_commit")),
        _named("pyllama_turbo", record.get("package")),
    )
    return tuple(fact for fact in found if fact)


def _days(records: Sequence[Record]) -> str:
    days = sorted({str(r["time"])[:10] for r in records if r.get("time")})
    return "" if not days else f"measured {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")


def origins(records: Sequence[Record]) -> list[Origin]:
    """Machines and libraries in the order in which they first appear."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if record.get("kind") == "provenance":
            found.setdefault(_facts(record), []).append(record)
    result = []
    for facts, runs in found.items():
        clocks = list(dict.fromkeys(str(r["clocks"]) for r in runs if r.get("clocks")))
        more = (f"GPU clocks {'; '.join(clocks)}" if clocks else "", _days(runs))
        commands = tuple(dict.fromkeys(str(r["command"]) for r in runs if r.get("command")))
        result.append(Origin((*facts, *(fact for fact in more if fact)), commands))
    return result
