"""SIGINT and SIGTERM while a model loads, a prompt runs, and text is made: 130 and 143, at once, terminal as it was."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
LIMIT_S = 1.0
BIG = {"n_layer": 6, "head_dim": 128, "n_head": 8, "n_head_kv": 8, "n_embd": 512, "n_ff": 2048}
# Runs the command line with one native call made slow or announced, so that the signal comes at a known moment.
HOOKS = {
    "load": """
        from pyllama_turbo import _callbacks
        before = _callbacks.ProgressTarget.__call__
        def hooked(self, progress):
            print("<now>", file=sys.stderr, flush=True)
            for _ in range(3000):
                time.sleep(0.01)
            return before(self, progress)
        _callbacks.ProgressTarget.__call__ = hooked
    """,
    "prefill": """
        from pyllama_turbo import context
        before = context.Context.prefill
        def hooked(self, *args, **keywords):
            print("<now>", file=sys.stderr, flush=True)
            return before(self, *args, **keywords)
        context.Context.prefill = hooked
    """,
    "decode": """
        from pyllama_turbo import context
        before = context.Context.step
        def hooked(self, *args, **keywords):
            if self.seqs.next_position() > 60:
                print("<now>", file=sys.stderr, flush=True)
            return before(self, *args, **keywords)
        context.Context.step = hooked
    """,
}
MAIN = """
import sys, time
from textwrap import dedent
exec(dedent(sys.argv.pop(1)))
from pyllama_turbo.cli import main
sys.exit(main())
"""


def read_until(fd: int, mark: bytes, seconds: float = 60) -> bytes:
    text, end = b"", time.monotonic() + seconds
    while mark not in text:
        assert select.select([fd], [], [], max(end - time.monotonic(), 0))[0], text
        text += os.read(fd, 4096)
    return text


@pytest.mark.parametrize("number", CODES, ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("stage", HOOKS)
def test_a_signal_at(tiny_model: Callable[..., Path], tmp_path: Path, stage: str, number: signal.Signals) -> None:
    (tmp_path / "long.txt").write_text("the quick brown fox " * 400)
    prompt = ["-f", str(tmp_path / "long.txt")] if stage == "prefill" else ["-p", "hello"]
    model = str(tiny_model(**BIG))
    args = ["run", "-m", model, "-n", "-1", "-c", "16k", "-t", "1", "--kv", "turbo3", "--k-center", "off", *prompt]
    parent, child = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", MAIN, HOOKS[stage], *args], stdout=child, stderr=child)
    os.close(child)
    try:
        text = read_until(parent, b"<now>")
        if stage == "prefill":
            time.sleep(0.3)  # well inside of the computation
        began = time.monotonic()
        process.send_signal(number)
        while True:
            try:
                piece = os.read(parent, 4096)
            except OSError:  # the last end of the terminal was closed
                break
            if not piece:
                break
            text += piece
        assert process.wait(timeout=30) == CODES[number]
        assert time.monotonic() - began < LIMIT_S
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert b"Traceback" not in text
    assert text.count(b"\x1b[?25l") == text.count(b"\x1b[?25h")  # a cursor that was hidden is back
