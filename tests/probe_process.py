"""Runs a few lines of Python in a process of its own: what probes and the tests on a GPU share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def run_probe(code: str, path: Path, *, returncode: int = 0) -> str:
    """Run the code, with `path` and the names of the prelude at hand; its stdout, stripped.

    Fails on another exit status, and on anything on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PRELUDE + textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == returncode, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout.strip()
