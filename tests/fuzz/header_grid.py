"""Every metadata value of a model's header replaced by awkward ones, one at a time: `header_grid.py ARCH FILE`.

Random changes seldom hit a number; this hits all of them. Each changed header is a model file with weights behind it,
and goes the way of the fuzz target `model`: our reader, the native loader, a context, two tokens. FILE names the change
at work. Prints the outcomes as JSON.
"""

from __future__ import annotations

import json
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fuzz_models import write_runnable
from targets import TARGETS, attempt, clean_up, folder

from pyllama_turbo.gguf import read_gguf

INTEGERS = (0, 1, 2, 3, 5, 7, 63, 65, 96, 128, 1000, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e30, 1e-30)
U32, I32, F32, BOOL, ARRAY = 4, 5, 6, 7, 9  # value types of the format
WIDTH = 4


def _splice(raw: bytes, at: int, new: bytes, old: int | None = None) -> bytes:
    return raw[:at] + new + raw[at + (len(new) if old is None else old) :]


def _array(raw: bytes, at: int) -> Iterator[tuple[str, bytes]]:
    kind, length = struct.unpack_from("<IQ", raw, at + 4)
    first = at + 16
    if kind in (U32, I32):
        for value in (-1, (1 << 31) - 1):
            yield f"all {value}", _splice(raw, first, struct.pack("<i", value) * length)
    if kind in (U32, I32, F32):
        yield "one item", _splice(raw, at + 8, struct.pack("<Q", 1) + raw[first : first + WIDTH], 8 + WIDTH * length)


def changes(raw: bytes, key: str) -> Iterator[tuple[str, bytes]]:
    """What was changed at `key`, and the header with it."""
    mark = struct.pack("<Q", len(key)) + key.encode()
    at = raw.index(mark) + len(mark)
    yield "another name", _splice(raw, at - len(key), b"Z")
    (kind,) = struct.unpack_from("<I", raw, at)
    if kind in (U32, I32):
        yield from ((str(n), _splice(raw, at + 4, struct.pack("<I", n))) for n in INTEGERS)
    elif kind == F32:
        yield from ((str(x), _splice(raw, at + 4, struct.pack("<f", x))) for x in FLOATS)
    elif kind == BOOL:
        yield from ((str(n), _splice(raw, at + 4, bytes([n]))) for n in (0, 1, 255))
    elif kind == ARRAY:
        yield from _array(raw, at)
    if kind in (U32, I32, F32):
        yield from ((f"type {n}", _splice(raw, at, struct.pack("<I", n))) for n in (U32, I32, F32) if n != kind)


def main(arch: str, file: Path) -> None:
    """Run the grid."""
    path = write_runnable(folder() / "grid.gguf", arch)
    header = read_gguf(path)
    raw = path.read_bytes()[: header.data_offset]
    outcomes: Counter[str] = Counter()
    for key in header.metadata:
        for name, changed in changes(raw, key):
            file.write_text(f"{arch}: {key} = {name}")
            outcomes[attempt(TARGETS["model"], changed)] += 1
    clean_up()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
