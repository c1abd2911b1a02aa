"""Python functions that native code calls: load progress and the poll during decode.

A callback cannot raise through C. Its exception, a KeyboardInterrupt included, is parked for the thread, the callback
returns the value that stops the native call, and `raise_parked` raises it after that call. cffi's `onerror` is the one
place that sees every exception: a signal may arrive before the first line of the callback.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["ProgressTarget", "raise_parked", "register"]

_parked = threading.local()


class ProgressTarget:
    """Receives load progress for one load.

    Args:
        function: called with 0.0 to 1.0, never falling; returning False cancels the load.
    """

    def __init__(self, function: Callable[[float], bool | None]) -> None:
        self.function = function
        self.highest = 0.0

    def __call__(self, progress: float) -> bool:
        self.highest = max(self.highest, min(progress, 1.0))
        return self.function(self.highest) is not False


def _park(exception: type[BaseException], value: BaseException | None, traceback: object) -> None:
    if getattr(_parked, "value", None) is None:
        _parked.value = value if value is not None else exception()


def raise_parked() -> None:
    """Raise the exception that a callback of this thread parked, if any."""
    value: BaseException | None = getattr(_parked, "value", None)
    if value is not None:
        _parked.value = None
        raise value


def register(ffi: Any) -> None:
    """Install the callback targets; called once, when the library is loaded."""

    def progress(value: float, user_data: Any) -> bool:
        target: ProgressTarget = ffi.from_handle(user_data)
        return target(value)

    def poll(user_data: Any) -> bool:
        return False  # entering Python is the point: pending signals are handled here and raise

    ffi.def_extern(name="turbo_py_progress", error=False, onerror=_park)(progress)
    ffi.def_extern(name="turbo_py_poll", error=True, onerror=_park)(poll)
