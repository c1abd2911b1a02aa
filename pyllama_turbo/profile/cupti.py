"""Kernel times from CUPTI's activity records, collected inside this process.

CUPTI comes with every CUDA toolkit and with the wheel nvidia-cuda-cupti; it is opened at run time and nothing links to
it. Only one profiler can use it at a time, so nothing is recorded under nsys.

Records are copied out of CUPTI's buffers as they are and read when recording has ended. Their leading fields have had
the same places since CUDA 11.1: kernels (start 16, end 24, device 40, stream 48, grid 52, launch 92, name 104, graph
156), copies and fills (direction or value 4, bytes 8, start 16, end 24, device 32, stream 40).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from .events import Event
from .phases import kernel_phase

__all__ = ["Recorder", "find_library", "parse_records"]

_MEMCPY, _MEMSET, _KERNEL = 1, 2, 10
_BUFFER_BYTES = 8 << 20
_ALIGN = 8
_RECORDERS: list[Recorder] = []
_SHARED: list[Recorder] = []
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


def find_library() -> str:
    """Path or name of libcupti.

    Raises:
        UnsupportedError: it is nowhere to be found.
    """
    names = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
    roots = [Path(p) for p in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if p]
    places = [
        root / part for root in roots for part in ("extras/CUPTI/lib64", "lib64", "lib", "targets/x86_64-linux/lib")
    ]
    wheels = [path for entry in sys.path for path in sorted(Path(entry or ".").glob("nvidia/*/lib"))]
    for folder in [*wheels, *places]:
        for name in names:
            if (folder / name).is_file():
                return str(folder / name)
    for name in names:
        try:
            ctypes.CDLL(name)
            return name
        except OSError:
            continue
    raise UnsupportedError(
        "CUPTI was not found (libcupti.so)",
        hint="install the CUDA toolkit, or pip install nvidia-cuda-cupti-cu12 or -cu13",
    )


class Recorder:
    """Records device activity between `start` and `stop`; usable once per process at a time.

    Raises:
        UnsupportedError: there is no CUPTI, or another profiler uses it.
    """

    def __init__(self, library: Any = None) -> None:
        self._lib = library if library is not None else ctypes.CDLL(find_library())
        self._registered = False
        self._buffers: dict[int, Any] = {}
        self._raw: list[bytes] = []
        # CUPTI may call back as long as the process lives, so the callbacks, and with them this object, do too.
        _RECORDERS.append(self)
        self._requested = ctypes.CFUNCTYPE(
            None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
        )(self._on_request)
        self._completed = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )(self._on_complete)

    @classmethod
    def shared(cls) -> Recorder:
        """The recorder of this process: CUPTI knows one set of callbacks, so every profile goes through one object."""
        if not _SHARED:
            _SHARED.append(cls())
        return _SHARED[0]

    def start(self) -> None:
        """Begin recording. Call it before the context is made: graphs captured earlier do not show their kernels."""
        if not self._registered:
            self._check(self._lib.cuptiActivityRegisterCallbacks(self._requested, self._completed), "register")
            self._registered = True
        for kind in (_KERNEL, _MEMCPY, _MEMSET):
            self._check(self._lib.cuptiActivityEnable(kind), "enable")

    def discard(self) -> None:
        """Forget what was recorded so far (warm-up)."""
        self._check(self._lib.cuptiActivityFlushAll(1), "flush")
        self._raw.clear()

    def stop(self) -> list[Event]:
        """End recording; all events in order of their start."""
        self._check(self._lib.cuptiActivityFlushAll(1), "flush")
        for kind in (_KERNEL, _MEMCPY, _MEMSET):
            self._check(self._lib.cuptiActivityDisable(kind), "disable")
        events = [event for raw in self._raw for event in parse_records(raw, self._records(raw))]
        self._raw.clear()
        return sorted(events, key=lambda event: event.start_ns)

    def _check(self, status: int, what: str) -> None:
        if status != 0:
            text = ctypes.c_char_p()
            self._lib.cuptiGetResultString(status, ctypes.byref(text))
            reason = (text.value or b"").decode() or f"code {status}"
            raise UnsupportedError(
                f"CUPTI cannot {what}: {reason}",
                hint="it needs a GPU and its driver, and no other profiler at the same time",
            )

    # -- called by CUPTI, from its own threads ---------------------------------------------------------------------

    def _on_request(self, buffer: Any, size: Any, max_records: Any) -> None:
        memory = ctypes.create_string_buffer(_BUFFER_BYTES + _ALIGN)
        address = -(-ctypes.addressof(memory) // _ALIGN) * _ALIGN
        self._buffers[address] = memory
        buffer[0], size[0], max_records[0] = address, _BUFFER_BYTES, 0

    def _on_complete(self, context: Any, stream: int, address: int, size: int, valid: int) -> None:
        if valid:
            self._raw.append(ctypes.string_at(address, valid))
        self._buffers.pop(address, None)

    def _records(self, raw: bytes) -> Iterator[int]:
        """Offsets of the records in a buffer, as CUPTI walks them."""
        memory = ctypes.create_string_buffer(raw, len(raw))
        base, record = ctypes.addressof(memory), ctypes.c_void_p()
        while self._lib.cuptiActivityGetNextRecord(memory, ctypes.c_size_t(len(raw)), ctypes.byref(record)) == 0:
            yield int(record.value or base) - base


def _u32(raw: bytes, place: int) -> int:
    return int.from_bytes(raw[place : place + 4], "little")


def _u64(raw: bytes, place: int) -> int:
    return int.from_bytes(raw[place : place + 8], "little")


def parse_records(raw: bytes, offsets: Iterator[int]) -> Iterator[Event]:
    """Events of one buffer of records; kinds other than kernels, copies and fills are passed over."""
    names: dict[int, str] = {}
    for at in offsets:
        kind = _u32(raw, at)
        start, end = _u64(raw, at + 16), _u64(raw, at + 24)
        if kind == _KERNEL:
            pointer = _u64(raw, at + 104)
            if pointer not in names:
                names[pointer] = demangle(ctypes.string_at(pointer)) if pointer else "?"
            name = names[pointer]
            yield Event(
                name,
                kernel_phase(name),
                start,
                end,
                _u32(raw, at + 40),
                _u32(raw, at + 48),
                grid=(_u32(raw, at + 52), _u32(raw, at + 56), _u32(raw, at + 60)),
                launch=_u32(raw, at + 92),
                graph=_u32(raw, at + 156),
            )
        elif kind in (_MEMCPY, _MEMSET):
            direction = _COPY_KINDS.get(raw[at + 4], "")
            name = f"memcpy {direction}".strip() if kind == _MEMCPY else "memset"
            device, stream, n_bytes = _u32(raw, at + 32), _u32(raw, at + 40), _u64(raw, at + 8)
            moved = n_bytes * (2 if direction == "DtoD" else 1)
            yield Event(name, kernel_phase(name), start, end, device, stream, moved)


def demangle(name: bytes) -> str:
    """A C++ name as text; the mangled one where the C++ library cannot be asked."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name.decode("ascii", "replace")
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    result = library.__cxa_demangle(name, None, None, ctypes.byref(status))
    if status.value != 0 or not result:
        return name.decode("ascii", "replace")
    text = ctypes.string_at(result).decode("utf-8", "replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(result))
    return text
