"""Changing inputs at random, with a seed: the part of a fuzzer that needs no coverage."""

from __future__ import annotations

import random
from collections.abc import Sequence

INTERESTING = (0, 1, 2, 7, 8, 16, 32, 64, 127, 128, 255, 256, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


class Mutator:
    """Makes inputs from a corpus. The same seed and corpus give the same inputs.

    Args:
        corpus: inputs to change; at least one.
        words: pieces worth inserting.
        max_bytes: longer results are cut.
        seed: of the choices.
    """

    def __init__(self, corpus: Sequence[bytes], words: Sequence[str], max_bytes: int, seed: int) -> None:
        self._corpus = list(corpus)
        self._words = [word.encode() for word in words]
        self._max = max_bytes
        self._rng = random.Random(seed)
        self._changes = [self._flip, self._number, self._remove, self._repeat, self._splice, self._random]
        if self._words:
            self._changes += [self._word, self._word]

    def next(self) -> bytes:
        """An input of the corpus after one to six changes."""
        data = bytearray(self._rng.choice(self._corpus))
        for _ in range(self._rng.randint(1, 6)):
            self._rng.choice(self._changes)(data)
        return bytes(data[: self._max])

    def _at(self, data: bytearray) -> int:
        return self._rng.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)

    def _number(self, data: bytearray) -> None:
        """A number that tends to matter in the place of another, in 1, 2, 4 or 8 bytes."""
        width = self._rng.choice((1, 2, 4, 8))
        value = self._rng.choice(INTERESTING) * self._rng.choice((1, -1)) % (1 << 8 * width)
        at = self._at(data)
        data[at : at + width] = value.to_bytes(width, "little")

    def _remove(self, data: bytearray) -> None:
        at = self._at(data)
        del data[at : at + self._rng.randint(1, 16)]

    def _repeat(self, data: bytearray) -> None:
        at = self._at(data)
        part = bytes(data[at : at + self._rng.randint(1, 32)])
        data[at:at] = part * self._rng.choice((1, 2, 3, 100))

    def _splice(self, data: bytearray) -> None:
        other = self._rng.choice(self._corpus)
        at = self._rng.randrange(len(other) + 1)
        start = self._at(data)
        data[start:start] = other[at : at + self._rng.randint(1, 64)]

    def _random(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._rng.randbytes(self._rng.randint(1, 8))

    def _word(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._rng.choice(self._words)
