"""Two switches against each other: the 2x2 table, each cell in a process of its own.

The library reads such switches once when it starts, so they cannot be turned within a process.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, TurboError

__all__ = ["SWITCHES", "Cell", "is_on", "run_cells", "switched", "table"]

# name -> environment variable, and its value that turns the switch off. "fused" is every fusion of the CUDA backend,
# "up_gate" the one of an expert layer's up and gate matmul with their activation, "products" joins the products of a
# decode step with the norms before and the sums behind them.
SWITCHES = {
    "graphs": ("GGML_CUDA_DISABLE_GRAPHS", "1"),
    "fused": ("GGML_CUDA_DISABLE_FUSION", "1"),
    "up_gate": ("TURBO_FUSED_UP_GATE", "0"),
    "products": ("TURBO_FUSED_PRODUCTS", "0"),
}


@dataclass(frozen=True)
class Cell:
    """One combination of switches and the rows measured in it."""

    state: tuple[tuple[str, bool], ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def rate(self) -> float:
        """Median rate of the first row in tokens per second, 0 if it failed."""
        samples = sorted(self.rows[0]["samples_ts"]) if self.rows and self.rows[0]["status"] == "ok" else []
        return float(samples[len(samples) // 2]) if samples else 0.0


def _is_zero(value: str) -> bool:
    """Whether C's atoi makes 0 of a text."""
    match = re.match(r"\s*[+-]?\d+", value)
    return match is None or int(match[0]) == 0


def is_on(name: str, environment: Mapping[str, str]) -> bool:
    """Whether a switch is on in an environment, as the library reads it: graphs go off by any value, the others by
    a number that is not 0 (fused) or is 0 (up_gate, products)."""
    variable, off = SWITCHES[name]
    value = environment.get(variable)
    if value is None or name == "graphs":
        return value is None
    return _is_zero(value) != (off == "0")


def switched(state: Mapping[str, bool], environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which the switches stand as `state` says."""
    found = {k: v for k, v in environment.items() if k not in [SWITCHES[name][0] for name in state]}
    return found | {SWITCHES[name][0]: SWITCHES[name][1] for name, on in state.items() if not on}


def _spawn(arguments: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pyllama_turbo", "bench", *arguments, "-o", "jsonl"],
        env=environment, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise TurboError(f"the measuring process ended with {done.returncode}")
    return done.stdout


def run_cells(
    names: Sequence[str], arguments: Sequence[str], spawn: Callable[[Sequence[str], dict[str, str]], str] = _spawn
) -> list[Cell]:
    """Measure every combination of two switches.

    Args:
        names: keys of `SWITCHES`.
        arguments: of `pyllama-turbo bench`, without the output format.
        spawn: runs the process and returns its JSON lines.

    Raises:
        OptionError: unknown names.
        TurboError: a process gave nothing.
    """
    unknown = [name for name in names if name not in SWITCHES]
    if unknown or len(set(names)) != len(names) or not names:
        raise OptionError(f"{', '.join(names)} cannot be switched", asked=tuple(names), limit=tuple(SWITCHES))
    cells = []
    for values in itertools.product((False, True), repeat=len(names)):
        state = dict(zip(names, values, strict=True))
        lines = spawn(arguments, switched(state, os.environ)).splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        cells.append(Cell(tuple(state.items()), tuple(r for r in records if r.get("kind") == "bench")))
    return cells


def table(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells: the first switch down, the last across, the gain of the last at the end of each line."""
    down: dict[tuple[tuple[str, bool], ...], dict[bool, float]] = {}
    for cell in cells:
        down.setdefault(cell.state[:-1], {})[cell.state[-1][1]] = cell.rate
    last = cells[0].state[-1][0]
    headers = ["", f"{last}=off", f"{last}=on", f"{last} gain"]
    lines = []
    for state, rates in down.items():
        label = " ".join(f"{name}={'on' if on else 'off'}" for name, on in state)
        off, on = rates.get(False, 0.0), rates.get(True, 0.0)
        lines.append([label, f"{off:.2f}", f"{on:.2f}", f"{100 * (on / off - 1):+.1f} %" if off and on else "-"])
    return headers, lines
