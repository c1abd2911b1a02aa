"""Result files: JSON lines, one record each, appended as soon as they are measured and read back to go on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import StateError

__all__ = ["ResultFile", "read_records"]


def read_records(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All records of JSON-lines files, in order; a last line cut off by an interruption is left out.

    Raises:
        StateError: a line is no JSON object.
        OSError: a file cannot be read.
    """
    records: list[dict[str, Any]] = []
    for path in paths:
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                records.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                if number == len(lines):
                    continue
                raise StateError(f"{path}, line {number}: {error}", asked=str(path)) from None
    return records


class ResultFile:
    """A file that records are appended to.

    Attributes:
        records: what was in it when it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = read_records([path]) if path.is_file() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            _drop_cut_line(path)

    def find(self, **wanted: Any) -> dict[str, Any] | None:
        """The last record with these fields, or None. Tuples match lists."""
        plain = json.loads(json.dumps(wanted))
        return next((r for r in reversed(self.records) if all(r.get(k) == v for k, v in plain.items())), None)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record; it is in the file when this returns."""
        text = json.dumps(record, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        self.records.append(json.loads(text))


def _drop_cut_line(path: Path) -> None:
    raw = path.read_bytes()
    if raw and not raw.endswith(b"\n"):
        path.write_bytes(raw[: raw.rfind(b"\n") + 1])
