"""Owning native objects: closed once, children before parents, with a finalizer as the net.

`close()` is idempotent and may come from any thread; it waits for a running native call of the same object. A child
keeps its parent alive, also while only its finalizer is left, so a model is never freed before its contexts.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from . import errors
from ._native import Binding

__all__ = ["Handle"]

_Self = TypeVar("_Self", bound="Handle")


def _release(free: Callable[[Any], None], pointer: Any, parent: Handle | None) -> None:
    # `parent` is held by the finalizer's arguments only to keep it alive until this call
    free(pointer)


class Handle:
    """Base of everything that owns a native pointer. Usable as a context manager.

    Attributes:
        lock: held around every native call on the object; native objects serve one thread at a time.
    """

    _what = "object"

    def __init__(self, binding: Binding, pointer: Any, free: Callable[[Any], None], parent: Handle | None = None) -> None:
        self._binding = binding
        self._pointer = pointer
        self._parent = parent
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        self.lock = threading.RLock()
        self._finalizer = weakref.finalize(self, _release, free, pointer, parent)
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

    def close(self) -> None:
        """Free the native memory. Later calls do nothing; other use raises ClosedError."""
        if not self._finalizer.alive:
            return
        for child in list(self._children):
            child.close()
        self._before_close()
        with self.lock:
            self._finalizer()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
