"""Who runs on a context, and interrupting exactly that one.

A cancellation comes from any thread and may come late: between its question "is it still running?" and the flag that
stops the library, the generation may end and another one begin. Both steps are therefore one, here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from . import errors

__all__ = ["Claim"]


class Claim:
    """The reservation of one context.

    `set_abort` sets (1) or clears (0) the library's flag for the context. It comes with each call: kept here, it would
    keep the context alive.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel while the same thread is in here
        self.user: object = None

    def take(self, user: object) -> None:
        """Reserve for `user`. Raises BusyError while another one has it."""
        with self._lock:
            if self.user is not None and self.user is not user:
                raise errors.BusyError(
                    "this context is generating already", hint="close that generation first, or make another context"
                )
            self.user = user

    def give_back(self, user: object, set_abort: Callable[[int], None]) -> None:
        """End the reservation of `user`, an interruption it did not hear included; does nothing for anyone else."""
        with self._lock:
            if self.user is user:
                self.user = None
                set_abort(0)

    def interrupt(self, user: object | None, set_abort: Callable[[int], None]) -> None:
        """Stop what runs; with a user, only while the context is reserved for it."""
        with self._lock:
            if user is None or self.user is user:
                set_abort(1)
