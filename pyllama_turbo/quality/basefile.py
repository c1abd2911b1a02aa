"""Files with the log-probabilities of a base run, in the format of llama.cpp's perplexity tool where it can say it.

Layout, little endian: magic (8 bytes), header, int32 tokens [n_chunk * n_ctx], then for each chunk `per_chunk` rows of
`softmax.row_words(n_vocab)` uint16. "_logits_" is llama.cpp's magic (header: int32 n_ctx, n_vocab, n_chunk; the second
half of each chunk is scored); "_trange_" is ours for other ranges (int32 n_ctx, n_vocab, n_chunk, first, last).

A JSON file beside it (name + ".json") says whose run it is and how many chunks are complete, so that an interrupted run
goes on and a base of another model, text or path is never taken for this one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError
from .plan import ScorePlan
from .softmax import row_words

__all__ = ["BaseFile", "create", "open_base", "size_bytes"]

_MAGIC_HALF, _MAGIC_RANGE = b"_logits_", b"_trange_"
_SIDE_SCHEMA = 1


@dataclass(frozen=True)
class _Header:
    n_ctx: int
    n_vocab: int
    n_chunk: int
    first: int
    last: int

    @property
    def half(self) -> bool:
        return self.first == self.n_ctx // 2 and self.last == self.n_ctx - 1

    @property
    def token_offset(self) -> int:
        return 8 + 4 * (3 if self.half else 5)

    @property
    def row_offset(self) -> int:
        return self.token_offset + 4 * self.n_ctx * self.n_chunk

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.n_chunk, self.last - self.first, row_words(self.n_vocab)

    @property
    def n_bytes(self) -> int:
        chunks, rows, words = self.shape
        return self.row_offset + 2 * chunks * rows * words

    def pack(self) -> bytes:
        numbers = [self.n_ctx, self.n_vocab, self.n_chunk, *([] if self.half else [self.first, self.last])]
        return (_MAGIC_HALF if self.half else _MAGIC_RANGE) + np.array(numbers, "<i4").tobytes()


class BaseFile:
    """An open base file.

    Attributes:
        path: the file.
        tokens: int32 [n_chunk, n_ctx].
        rows: uint16 [n_chunk, per_chunk, row_words], mapped from the file, written through where it may be.
        identity: whose run it is (model, settings, path), or empty for a file of llama.cpp's tool.
        done: complete chunks.
    """

    def __init__(self, path: Path, header: _Header, mode: str, identity: Mapping[str, Any], done: int) -> None:
        self.path = path
        self.header = header
        self.identity = dict(identity)
        self.done = done
        tokens = np.memmap(path, "<i4", "r", header.token_offset, (header.n_chunk, header.n_ctx))
        self.tokens: NDArray[np.int32] = np.array(tokens)
        self.rows: NDArray[np.uint16] = np.memmap(
            path, "<u2", "r+" if mode == "w" else "r", header.row_offset, header.shape
        )

    @property
    def n_vocab(self) -> int:
        """Vocabulary the rows are over."""
        return self.header.n_vocab

    @property
    def complete(self) -> bool:
        """Whether every chunk is there."""
        return self.done >= self.header.n_chunk

    def plan(
        self, *, bos: int | None = None, path: str = "prefill", n_batch: int = 512, parallel: int = 1
    ) -> ScorePlan:
        """The plan that scores the same tokens. `bos` replaces the first of each chunk: llama.cpp's files lack it."""
        tokens = self.tokens.copy()
        if bos is not None:
            tokens[:, 0] = bos
        return ScorePlan(tokens, self.header.first, self.header.last, path, n_batch, parallel)

    def advance(self, done: int) -> None:
        """Say that the first `done` chunks are complete; what was written reaches the file first."""
        self.rows.flush()  # type: ignore[attr-defined]
        self.done = done
        _write_side(self.path, self.identity, done)


def size_bytes(plan: ScorePlan, n_vocab: int) -> int:
    """Size of the base file of a plan, in bytes."""
    return _Header(plan.n_ctx, n_vocab, plan.n_chunk, plan.first, plan.last).n_bytes


def _side_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _write_side(path: Path, identity: Mapping[str, Any], done: int) -> None:
    side = _side_path(path)
    fresh = side.with_name(side.name + ".new")
    fresh.write_text(json.dumps({"schema": _SIDE_SCHEMA, "done": done, "identity": dict(identity)}, indent=1))
    os.replace(fresh, side)


def _read_side(path: Path) -> tuple[dict[str, Any], int | None]:
    side = _side_path(path)
    if not side.is_file():
        return {}, None
    try:
        data = json.loads(side.read_text())
        return dict(data["identity"]), int(data["done"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{side} is damaged: {error}", hint="delete it together with the base file") from None


def create(path: Path, plan: ScorePlan, n_vocab: int, identity: Mapping[str, Any]) -> BaseFile:
    """A base file for a plan: a new one, or the one that is there if it belongs to the same run.

    Raises:
        StateError: the file that is there is another run's.
        OSError: it cannot be written.
    """
    header = _Header(plan.n_ctx, n_vocab, plan.n_chunk, plan.first, plan.last)
    if path.exists():
        found = open_base(path, writable=True)
        if found.identity != dict(identity) or not np.array_equal(found.tokens, plan.tokens) or found.header != header:
            raise StateError(
                f"{path} is the base of another run",
                asked=dict(identity),
                limit=found.identity,
                hint="choose another file name",
            )
        return found
    with path.open("wb") as file:
        file.write(header.pack())
        file.write(np.ascontiguousarray(plan.tokens, "<i4").tobytes())
        file.truncate(header.n_bytes)
    _write_side(path, identity, 0)
    return BaseFile(path, header, "w", identity, 0)


def open_base(path: Path, *, writable: bool = False) -> BaseFile:
    """Open a base file of ours or of llama.cpp's tool.

    Raises:
        StateError: it is none, or shorter than its header says.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        magic = file.read(8)
        count = {_MAGIC_HALF: 3, _MAGIC_RANGE: 5}.get(magic)
        raw = file.read(4 * count) if count else b""
    if count is None or len(raw) != 4 * count:
        raise StateError(f"{path} holds no log-probabilities of a base run", asked=str(path))
    numbers = np.frombuffer(raw, "<i4").tolist()
    n_ctx, n_vocab, n_chunk = numbers[:3]
    first, last = numbers[3:] if count == 5 else (n_ctx // 2, n_ctx - 1)
    header = _Header(n_ctx, n_vocab, n_chunk, first, last)
    sane = n_ctx > 1 and n_vocab > 0 and n_chunk > 0 and 0 <= first < last < n_ctx
    actual = path.stat().st_size
    if not sane or actual < header.n_bytes:
        raise StateError(
            f"{path} is cut off or damaged: {actual:,} bytes, its header says {header.n_bytes:,}"
            if sane
            else f"{path} is damaged",
            asked=actual,
            limit=header.n_bytes if sane else None,
        )
    identity, done = _read_side(path)
    return BaseFile(path, header, "w" if writable else "r", identity, n_chunk if done is None else done)
