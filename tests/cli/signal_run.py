"""Sends a signal to the command line at a known moment, and says how it ended."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
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


def interrupted(
    arguments: Sequence[str], stage: str, number: signal.Signals, wait_s: float = 0.0
) -> tuple[int, float, bytes]:
    """Run the command line until `stage` and `wait_s` seconds longer, then send the signal.

    Returns:
        Exit status, seconds from the signal to the end, and all that came to the terminal.
    """
    parent, child = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", MAIN, HOOKS[stage], *arguments], stdout=child, stderr=child)
    os.close(child)
    try:
        text = read_until(parent, b"<now>")
        time.sleep(wait_s)
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
        return process.wait(timeout=30), time.monotonic() - began, text
    finally:
        process.kill()
        process.wait()
        os.close(parent)
