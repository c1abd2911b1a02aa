"""Native log lines go to Python's logging, logger ``pyllama_turbo.native``; nothing is printed by default.

The library keeps its lines in a ring; `drain` moves them out after native calls, in the thread that made the call.
The newest lines are kept here for the `native_log` of exceptions.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from typing import Any

__all__ = ["drain", "forget", "logger", "tail"]

logger = logging.getLogger("pyllama_turbo.native")
logging.getLogger("pyllama_turbo").addHandler(logging.NullHandler())

_LINE_BYTES = 4096
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_recent: deque[tuple[int, str]] = deque(maxlen=64)


def drain(ffi: Any, lib: Any) -> None:
    """Move all waiting native lines to `logging` and to the tail kept for exceptions.

    A handler that raises does not stop the operation that logged: as in `logging` itself, its traceback goes to stderr
    unless `logging.raiseExceptions` is off.
    """
    buffer = ffi.new("char[]", _LINE_BYTES)
    while True:
        level = lib.turbo_log_pop(buffer, _LINE_BYTES)
        if level == 0:
            return
        text = ffi.string(buffer).decode("utf-8", "replace").rstrip()
        if text:
            _recent.append((level, text))
            try:
                logger.log(_LEVELS.get(level, logging.INFO), "%s", text)
            except Exception:
                if logging.raiseExceptions:
                    traceback.print_exc()


def tail(lines: int = 5) -> tuple[str, ...]:
    """The last warnings and errors, or the last lines of any level if there are none; oldest first."""
    kept = list(_recent)
    serious = [text for level, text in kept if level >= 3]
    return tuple((serious or [text for _, text in kept])[-lines:])


def forget() -> None:
    """Drop the kept lines, so that an exception shows only what its own call logged."""
    _recent.clear()
