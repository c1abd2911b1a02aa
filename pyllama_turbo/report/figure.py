"""What the page is made of: a plot with the table it shows, and how records are sorted into groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "Record", "good", "grouped"]

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A plot with its table.

    Attributes:
        title: heading.
        note: how to read it.
        svg: the picture, "" for a table alone.
        headers, rows: the table under it.
    """

    title: str
    note: str
    svg: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grouped(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records by the values of some fields, groups and records in their order."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record.get(key) for key in keys), []).append(record)
    return found


def good(records: Sequence[Record], kind: str) -> list[Record]:
    """The measured records of a kind."""
    return [r for r in records if r.get("kind") == kind and r.get("status", "ok") == "ok"]
