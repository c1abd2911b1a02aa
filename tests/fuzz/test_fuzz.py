"""Every fuzz target for some seconds, in a process each: the corpus replayed, then changed at random with a fixed seed.

`make fuzz` is the same with coverage. A failure names a file with the input; `coverage.py TARGET FILE` repeats it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutate import Mutator

FUZZ = Path(__file__).resolve().parent
SECONDS = 6.5  # a target: about a minute for all
MAX_GROWTH_MIB = 320.0  # of peak memory over what models, contexts and seeds took
CORPUS_KIB = 200


@pytest.mark.parametrize("name", [*("gguf", "model", "state", "grammar", "schema", "template", "answer", "tokenizer")])
def test_hostile_input_is_refused_by_name(name: str, tmp_path: Path) -> None:
    file = Path(tmp_path / "input")
    command = [sys.executable, "-X", "faulthandler", str(FUZZ / "fuzz_slice.py"), name, str(SECONDS), "7", str(file)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(FUZZ.parents[1]), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env, check=False)
    shown = file.read_bytes()[:2000] if file.exists() else b""
    assert done.returncode == 0, f"{name} ended with {done.returncode} on {shown!r} ({file})\n{done.stderr[-4000:]}"
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["seeds_accepted"] == figures["seeds"]  # else the targets would test nothing behind the first check
    outcomes = figures["outcomes"]
    assert sum(outcomes.values()) > figures["seeds"] + figures["replayed"] + 20
    assert figures["peak_mib"] - figures["settled_mib"] < MAX_GROWTH_MIB, figures


def test_the_corpus_is_there_and_small() -> None:
    files = [path for path in (FUZZ / "corpus").rglob("*") if path.is_file()]
    assert len({path.parent.name for path in files}) == 8
    assert sum(path.stat().st_size for path in files) < CORPUS_KIB << 10


def test_the_same_seed_gives_the_same_inputs() -> None:
    first, second = (Mutator([b"abc", b"0123456789"], ["word"], 64, seed=3) for _ in range(2))
    inputs = [first.next() for _ in range(200)]
    assert inputs == [second.next() for _ in range(200)]
    assert len(set(inputs)) > 150
    assert any(b"word" in data for data in inputs)
    assert max(map(len, inputs)) <= 64
