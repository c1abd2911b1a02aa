"""Probes: things that kill a process when nobody guards them, each in a process of its own.

A probe is a few lines of Python with `path` (a tiny model), `Model`, `errors` and friends at hand. It passes when the
process ends with status 0, prints what is expected, and leaves stderr empty.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from probe_process import run_probe


@pytest.fixture
def probe(tiny_model: Callable[..., Path]) -> Callable[..., str]:
    """`probe(code, head_dim=64, ...)`: run the code in a fresh process; its stdout, stripped."""

    def run(code: str, *, returncode: int = 0, **shape: object) -> str:
        return run_probe(code, tiny_model(**shape), returncode=returncode)

    return run
