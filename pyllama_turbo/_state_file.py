"""The format of saved state: a magic line, a checksum line, a header line in JSON, and the native bytes.

The checksum covers everything behind it, header included, so a file with any bit changed is recognised before anything
of it is used. Nothing is allocated that the file's own size does not cover.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import errors

__all__ = ["Header", "Held", "pack", "read", "unpack", "write"]

MAGIC = b"pyllama-turbo state 2\n"
_CHECKSUM_BYTES = 64
_FIXED = len(MAGIC) + _CHECKSUM_BYTES + 1
_MAX_HEADER_BYTES = 64 << 20


@dataclass(frozen=True)
class Held:
    """What one sequence holds.

    Attributes:
        tokens: its tokens from position 0 on, None if they are not known.
        n_exact: how many of them may be reused, None for all.
        first, last: positions.
    """

    seq: int
    tokens: tuple[int, ...] | None
    n_exact: int | None
    first: int
    last: int


@dataclass(frozen=True)
class Header:
    """The header of saved state.

    Attributes:
        kind: "sequence", or "context" for all sequences together.
        identity: what must be equal in the context that it is loaded into.
        n_ctx_seq: tokens a sequence could hold where it was saved.
        held: the sequences in it.
        n_bytes: size of the native bytes.
    """

    kind: str
    identity: dict[str, Any]
    n_ctx_seq: int
    held: tuple[Held, ...]
    n_bytes: int


def pack(header: Header, payload: memoryview) -> bytes:
    """Everything that stands in front of the native bytes."""
    line = json.dumps(asdict(header), separators=(",", ":")).encode() + b"\n"
    digest = hashlib.sha256(line)
    digest.update(payload)
    return MAGIC + digest.hexdigest().encode() + b"\n" + line


def _integer(value: Any, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 1 << 62:
        raise ValueError(f"{value!r} is no number from {low} on")
    return value


def _held(row: Any) -> Held:
    first, last = _integer(row["first"], -1), _integer(row["last"], -1)
    tokens = row["tokens"]
    if tokens is not None:
        tokens = tuple(_integer(t, 0) for t in tokens)
        if len(tokens) != last + 1:
            raise ValueError(f"{len(tokens)} tokens for positions up to {last}")
    n_exact = None if row["n_exact"] is None else _integer(row["n_exact"], 0)
    return Held(_integer(row["seq"], 0), tokens, n_exact, first, last)


def _parse(line: bytes) -> Header:
    """Raises ValueError, KeyError, TypeError or RecursionError for a header that makes no sense."""
    row = json.loads(line)
    if row["kind"] not in ("sequence", "context"):
        raise ValueError(f"unknown kind {row['kind']!r}")
    held = tuple(_held(entry) for entry in row["held"])
    if row["kind"] == "sequence" and len(held) != 1:
        raise ValueError(f"{len(held)} sequences")
    return Header(row["kind"], dict(row["identity"]), _integer(row["n_ctx_seq"], 0), held, _integer(row["n_bytes"], 1))


def unpack(data: bytes | memoryview, name: str) -> tuple[Header, memoryview]:
    """The header and the native bytes of saved state; `name` says in errors where it came from.

    Raises:
        StateError: it is cut, damaged, of another version, or something else altogether.
    """
    view = memoryview(data).cast("B")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise _foreign(name)
    end = bytes(view[_FIXED : _FIXED + _MAX_HEADER_BYTES]).find(b"\n")
    if len(view) < _FIXED or end < 0:
        raise errors.StateError(f"{name}: ends inside the header: it is not complete")
    line, payload = bytes(view[_FIXED : _FIXED + end + 1]), view[_FIXED + end + 1 :]
    digest = hashlib.sha256(line)
    digest.update(payload)
    claimed = bytes(view[len(MAGIC) : _FIXED])
    try:
        header = _parse(line)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise errors.StateError(f"{name}: the header is damaged") from None
    if len(payload) != header.n_bytes:
        raise errors.StateError(
            f"{name}: {len(payload):,} of {header.n_bytes:,} bytes of the cache are there",
            asked=len(payload),
            limit=header.n_bytes,
        )
    if claimed != digest.hexdigest().encode() + b"\n":
        raise errors.StateError(f"{name}: the checksum does not match: it is damaged")
    return header, payload


def read(path: Path) -> bytes:
    """The bytes of a file of saved state; one of another kind is refused before it is read.

    Raises:
        StateError: it is missing, cannot be read, or is something else.
        MemoryLimitError: there is no memory for it.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise _foreign(str(path))
            file.seek(0)
            return file.read()
    except OSError as error:
        raise errors.StateError(f"{path}: cannot be read: {error.strerror}", asked=str(path)) from None
    except MemoryError:
        raise errors.MemoryLimitError(f"{path}: no memory to read it", asked=path.stat().st_size) from None


def _foreign(name: str) -> errors.StateError:
    return errors.StateError(f"{name}: this is no saved state of this version", hint="save it again")


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _sweep(target: Path) -> None:
    """Remove what a killed process left of the same file."""
    name = re.compile(re.escape(target.name) + r"\.(\d{1,9})\.part")
    with contextlib.suppress(OSError):
        for entry in target.parent.iterdir():
            match = name.fullmatch(entry.name)
            if match and not _running(int(match[1])):
                entry.unlink(missing_ok=True)


def write(target: Path, *parts: bytes | memoryview) -> int:
    """Write a file, complete or not at all: whatever happens, `target` is the old file or the whole new one.

    Returns:
        The bytes written.

    Raises:
        OSError: no space, no permission, a file size limit; the old file is untouched.
    """
    _sweep(target)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return sum(len(part) for part in parts)
