"""SIGINT and SIGTERM while a model loads, a prompt runs, and text is made: 130 and 143, at once, terminal as it was."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from signal_run import CODES, HOOKS, interrupted

LIMIT_S = 1.0
BIG = {"n_layer": 6, "head_dim": 128, "n_head": 8, "n_head_kv": 8, "n_embd": 512, "n_ff": 2048}


@pytest.mark.parametrize("number", CODES, ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("stage", HOOKS)
def test_a_signal_at(tiny_model: Callable[..., Path], tmp_path: Path, stage: str, number: signal.Signals) -> None:
    (tmp_path / "long.txt").write_text("the quick brown fox " * 400)
    prompt = ["-f", str(tmp_path / "long.txt")] if stage == "prefill" else ["-p", "hello"]
    model = str(tiny_model(**BIG))
    args = ["run", "-m", model, "-n", "-1", "-c", "16k", "-t", "1", "--kv", "turbo3", "--k-center", "off", *prompt]
    wait_s = 0.3 if stage == "prefill" else 0.0  # well inside of the computation
    status, seconds, text = interrupted(args, stage, number, wait_s)
    assert status == CODES[number] and seconds < LIMIT_S
    assert b"Traceback" not in text
    assert text.count(b"\x1b[?25l") == text.count(b"\x1b[?25h")  # a cursor that was hidden is back
