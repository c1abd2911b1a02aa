"""What the GPU measuring scripts share: facts of the device, the model file, a clock with a budget, result files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the package of this checkout, installed or not
from pyllama_turbo.report.records import ResultFile, read_records  # noqa: E402

_FIELDS = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw",
    "memory.total", "memory.used",
)  # fmt: skip


def gpu_facts(when: str) -> dict[str, str]:
    """Name, driver, clocks, temperature and memory of the first GPU as a result record; without one only `when`.

    Args:
        when: "before" or "after" the measurements.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {"kind": "gpu", "when": when}
    return {"kind": "gpu", "when": when, **dict(zip(_FIELDS, (v.strip() for v in answer.split(",")), strict=True))}


def model_file(shape: str, folder: Path, *, tiny: bool = False) -> Path:
    """The random model of a shape, written to `folder` unless it is there."""
    path = folder / f"{shape}{'-tiny' if tiny else ''}.gguf"
    if not path.exists():
        command = [sys.executable, str(ROOT / "scripts" / "make_model.py"), str(path), "--shape", shape]
        subprocess.run([*command, *(["--tiny"] if tiny else [])], check=True, stdout=sys.stderr)
    return path


@dataclass
class Budget:
    """A clock that says whether there is time for another piece of work.

    Attributes:
        seconds: what may be spent.
        start: when it began, on the monotonic clock.
    """

    seconds: float
    start: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds left, negative when it is overdrawn."""
        return self.seconds - self.spent

    def say(self, text: str) -> None:
        """A line of progress on stderr, with the time."""
        print(f"[{self.spent:6.1f} s] {text}", file=sys.stderr, flush=True)


class Results:
    """A file of records, one JSON object a line, written as they come: what was measured survives an interruption.

    Attributes:
        path: the file.
        failed: what could not be measured, or for what there was no time.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self.failed: list[str] = []
        if fresh:
            path.unlink(missing_ok=True)
        self._file = ResultFile(path)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record; one that failed or was skipped is remembered."""
        self._file.append(record)
        if record.get("status", "ok") != "ok":
            setting = "/".join(str(record[k]) for k in ("type_k", "type_v") if k in record)
            self.failed.append(f"{record.get('kind')} {record.get('what', setting)}: {record.get('reason')}")

    def skip(self, kind: str, what: str, reason: str) -> None:
        """Record that something was not measured."""
        self.add({"kind": kind, "what": what, "status": "skipped", "reason": reason})

    def records(self) -> list[dict[str, Any]]:
        """Everything in the file, what other processes wrote included."""
        return read_records([self.path]) if self.path.exists() else []
