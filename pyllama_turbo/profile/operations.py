"""Times of single operations on the CPU, from the library's own hook around every graph node.

Each operation is computed on its own while this records, so a step takes somewhat longer than without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import UnsupportedError
from .events import Event
from .phases import operation_phase

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["OperationRecorder"]

_CAPACITY = 1 << 18
# Of tables that are indexed the library counts all bytes, and only some rows are touched.
_INDEXED = ("GET_ROWS", "SET_ROWS", "MUL_MAT_ID")


class OperationRecorder:
    """Records operations of one context between `start` and `stop`.

    Raises:
        UnsupportedError: the loaded library has no such hook.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._b = context._binding
        if not hasattr(self._b.lib, "turbo_profile_start"):
            raise UnsupportedError("this library cannot time single operations", hint="rebuild it: make build")

    def start(self) -> None:
        """Begin recording."""
        _native.check(self._b, self._b.lib.turbo_profile_start(self._context.pointer(), _CAPACITY))

    def stop(self) -> list[Event]:
        """End recording; the operations in the order they ran, views left out."""
        b, pointer = self._b, self._context.pointer()
        _native.check(b, b.lib.turbo_profile_stop(pointer))
        n = _native.check(b, b.lib.turbo_profile_read(pointer, b.ffi.NULL, 0))
        rows = b.ffi.new("turbo_profile_row[]", max(n, 1))
        _native.check(b, b.lib.turbo_profile_read(pointer, rows, n))
        return [event for event in (self._event(rows[i]) for i in range(n)) if event.phase]

    def _event(self, row: Any) -> Event:
        operation, tensor = _native.text(self._b, row.op), _native.text(self._b, row.tensor)
        # "ffn_up-12" of every layer is one row of the table, and so are nodes that only have a number
        base = tensor.split("-")[0].split(" ")[0].rstrip("0123456789").removesuffix("node_").removesuffix("leaf_")
        name = f"{operation} {base}".strip()
        n_bytes = 0 if operation in _INDEXED else row.bytes
        return Event(name, operation_phase(operation, tensor), row.start_ns, row.end_ns, bytes=n_bytes)
