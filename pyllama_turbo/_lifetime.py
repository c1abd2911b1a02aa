"""Owning native objects: closed once, children before parents, with a finalizer as the net.

`close()` is idempotent and may come from any thread; it waits for a running native call of the same object. A child
keeps its parent alive, also while only its finalizer is left, so a model is never freed before its contexts.

When the interpreter ends, a daemon thread may still be inside a native call: its object's lock is taken first and kept.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import errors
from ._native import Binding

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Handle"]


_PATIENCE_S = 2.0  # for a native call that runs at exit, before it is stopped; then as long again
_live: weakref.WeakSet[Handle] = weakref.WeakSet()


def _quiesce() -> None:
    """At exit: wait for running native calls and keep the locks, so that finalizers free what nobody uses."""
    for handle in list(_live):
        if not handle.lock.acquire(timeout=_PATIENCE_S):
            _hush_threads()
            handle._before_close()
            if not handle.lock.acquire(timeout=_PATIENCE_S):
                handle.abandon()


def _hush_threads() -> None:
    """Nobody waits for a daemon thread whose call is stopped at exit: what that raises in it is no news."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs, /) -> None:
        if not issubclass(args.exc_type, errors.TurboError):
            before(args)

    threading.excepthook = hook


def _release(free: Callable[[Any], None], pointer: Any, parent: Handle | None) -> None:
    # `parent` is held by the finalizer's arguments only to keep it alive until this call
    free(pointer)


class Handle:
    """Base of everything that owns a native pointer. Usable as a context manager.

    Attributes:
        lock: held around every native call on the object; native objects serve one thread at a time.
    """

    _what = "object"

    def __init__(
        self, binding: Binding, pointer: Any, free: Callable[[Any], None], parent: Handle | None = None
    ) -> None:
        self._binding = binding
        self._pointer = pointer
        self._parent = parent
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        self.lock = threading.RLock()
        self._finalizer = weakref.finalize(self, _release, free, pointer, parent)
        if not _live:
            atexit.unregister(_quiesce)
            atexit.register(_quiesce)  # after weakref's own hook, so that it runs before it
        _live.add(self)
        if parent is not None:
            parent._children.add(self)

    @property
    def closed(self) -> bool:
        """True once `close()` was called."""
        return not self._finalizer.alive

    def pointer(self) -> Any:
        """The native pointer. Raises ClosedError after `close()`."""
        if not self._finalizer.alive:
            raise errors.ClosedError(f"this {self._what} was closed")
        return self._pointer

    def _before_close(self) -> None:
        """Hook: called before waiting for the lock, to stop a running native call."""

    def abandon(self) -> None:
        """Leave the memory to the system when the process ends: a call that cannot be stopped still uses it."""
        self._finalizer.atexit = False
        if self._parent is not None:
            self._parent.abandon()

    def close(self) -> None:
        """Free the native memory. Later calls do nothing; other use raises ClosedError."""
        if not self._finalizer.alive:
            return
        for child in list(self._children):
            child.close()
        self._before_close()
        with self.lock:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
