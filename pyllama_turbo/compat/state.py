"""Saved states, and caches of them: what a `Llama` computed for a prompt, to be used again."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .. import state as states
from ..errors import StateError

if TYPE_CHECKING:
    from ..context import Context

__all__ = [
    "BaseLlamaCache",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaRAMCache",
    "LlamaState",
    "common_start",
    "recall",
    "remember",
    "save",
]

CAPACITY_BYTES = 2 << 30


@dataclass(frozen=True)
class LlamaState:
    """The KV cache of a `Llama` at one moment. Can be pickled.

    Attributes:
        input_ids: tokens it holds.
        llama_state: bytes of `pyllama_turbo.state`, which carry the identity of the cache.
    """

    input_ids: tuple[int, ...]
    llama_state: bytes = field(repr=False)

    @property
    def n_tokens(self) -> int:
        """Tokens it holds."""
        return len(self.input_ids)

    @property
    def llama_state_size(self) -> int:
        """Bytes of `llama_state`."""
        return len(self.llama_state)


def common_start(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of tokens two sequences share from their beginning."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return min(len(a), len(b))


def save(context: Context) -> LlamaState:
    """What a context holds.

    Raises:
        StateError: the library could not write it, or it is not known which tokens it holds.
    """
    with context.lock:
        held = context.seqs.tokens()
        if held is None:
            raise StateError("it is not known which tokens the context holds", hint="call reset() and run the prompt")
        return LlamaState(held, states.get_bytes(context))


class BaseLlamaCache:
    """States by their tokens. `cache[tokens]` gives the state that shares the longest start with `tokens`.

    Args:
        capacity_bytes: the oldest states go when there is more.
    """

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes

    @property
    def cache_size(self) -> int:
        """Bytes in use."""
        return sum(size for _, size in self._sizes())

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._nearest(key) is not None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        nearest = self._nearest(key)
        if nearest is None:
            raise KeyError("no state shares a start with these tokens")
        return self._read(nearest)

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self._write(tuple(key), value)
        sizes = self._sizes()
        total = sum(size for _, size in sizes)
        for old, size in sizes:
            if total <= self.capacity_bytes:
                break
            self._drop(old)
            total -= size

    def _nearest(self, key: Sequence[int]) -> tuple[int, ...] | None:
        best = max((known for known, _ in self._sizes()), key=lambda known: common_start(known, key), default=None)
        return best if best is not None and common_start(best, key) else None

    def _sizes(self) -> list[tuple[tuple[int, ...], int]]:
        """Keys and bytes, the oldest first."""
        return []

    def _read(self, key: tuple[int, ...]) -> LlamaState:
        raise KeyError(key)

    def _write(self, key: tuple[int, ...], value: LlamaState) -> None:
        """Keep a state."""

    def _drop(self, key: tuple[int, ...]) -> None:
        """Forget a state."""


class LlamaRAMCache(BaseLlamaCache):
    """States in memory."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        super().__init__(capacity_bytes)
        self._states: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    def _sizes(self) -> list[tuple[tuple[int, ...], int]]:
        return [(key, state.llama_state_size) for key, state in self._states.items()]

    def _read(self, key: tuple[int, ...]) -> LlamaState:
        self._states.move_to_end(key)
        return self._states[key]

    def _write(self, key: tuple[int, ...], value: LlamaState) -> None:
        self._states[key] = value
        self._states.move_to_end(key)

    def _drop(self, key: tuple[int, ...]) -> None:
        del self._states[key]


LlamaCache = LlamaRAMCache


class LlamaDiskCache(BaseLlamaCache):
    """States in a folder, one file each, kept between runs.

    A file is a JSON line with the tokens, and the state.

    Args:
        cache_dir: the folder; it is made.
        capacity_bytes: the oldest files go when there is more.
    """

    def __init__(
        self, cache_dir: str | os.PathLike[str] = ".cache/llama_cache", capacity_bytes: int = CAPACITY_BYTES
    ) -> None:
        super().__init__(capacity_bytes)
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: tuple[int, ...]) -> Path:
        return self._folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.state"

    def _sizes(self) -> list[tuple[tuple[int, ...], int]]:
        files = sorted(self._folder.glob("*.state"), key=lambda path: path.stat().st_mtime_ns)
        return [(key, path.stat().st_size) for path in files if (key := _stored_key(path)) is not None]

    def _read(self, key: tuple[int, ...]) -> LlamaState:
        path = self._path(key)
        with path.open("rb") as file:
            file.readline()
            payload = file.read()
        os.utime(path)
        return LlamaState(key, payload)

    def _write(self, key: tuple[int, ...], value: LlamaState) -> None:
        path = self._path(key)
        partial = path.with_suffix(f".{os.getpid()}.part")
        try:
            with partial.open("wb") as file:
                file.write(json.dumps({"tokens": key}).encode() + b"\n")
                file.write(value.llama_state)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _drop(self, key: tuple[int, ...]) -> None:
        self._path(key).unlink(missing_ok=True)


def _stored_key(path: Path) -> tuple[int, ...] | None:
    """The tokens of a file of ours; None for any other."""
    try:
        with path.open("rb") as file:
            return tuple(json.loads(file.readline())["tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recall(context: Context, cache: BaseLlamaCache | None, prompt: Sequence[int]) -> None:
    """Load the cached state that shares more of a prompt than the context does."""
    if cache is None or prompt not in cache:
        return
    found = cache[prompt]
    if common_start(found.input_ids, prompt) > common_start(context.seqs.tokens() or (), prompt):
        states.set_bytes(context, found.llama_state)


def remember(context: Context, cache: BaseLlamaCache | None) -> None:
    """Put a context's state into the cache."""
    if cache is not None and (held := context.seqs.tokens()):
        cache[held] = save(context)
