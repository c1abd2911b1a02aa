"""numpy views of native memory that keep its owner alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["float_view"]


class _Memory:
    """Describes native memory to numpy; the array holds this object, and this object holds the owner."""

    def __init__(self, address: int, shape: tuple[int, ...], owner: object, writable: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, not writable), "shape": shape, "typestr": "<f4", "version": 3}


def float_view(
    ffi: Any, pointer: Any, shape: tuple[int, ...], *, owner: object, writable: bool = False
) -> NDArray[np.float32]:
    """A float32 array over native memory, without a copy. `owner` stays alive as long as the array does."""
    import numpy as np

    return np.asarray(_Memory(int(ffi.cast("uintptr_t", pointer)), shape, owner, writable))
