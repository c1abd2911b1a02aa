"""Probes: things that kill a process when nobody guards them, each in a process of its own.

A probe is a few lines of Python with `path` (a tiny model), `Model`, `errors` and friends at hand. It passes when the
process ends with status 0, prints what is expected, and leaves stderr empty.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 180

PRELUDE = """\
import gc, os, signal, sys, threading, time
import numpy as np
from pyllama_turbo import Chat, Model, Sampler, errors, grammar, kv, state
path = sys.argv[1]

def expect(kind, call, *args, **keywords):
    try:
        call(*args, **keywords)
    except errors.TurboError as error:
        assert type(error) is kind, (type(error), str(error))
        return error
    raise SystemExit(f"no {kind.__name__} was raised")
"""


@pytest.fixture
def probe(tiny_model: Callable[..., Path]) -> Callable[..., str]:
    """`probe(code, head_dim=64, ...)`: run the code in a fresh process; its stdout, stripped."""

    def run(code: str, *, returncode: int = 0, **shape: object) -> str:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", PRELUDE + textwrap.dedent(code), str(tiny_model(**shape))],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == returncode, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == ""
        return done.stdout.strip()

    return run
