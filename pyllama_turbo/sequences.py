"""The sequences in a context's cache: which tokens they hold, cutting, copying, shifting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import _native, errors

if TYPE_CHECKING:
    from .context import Context

__all__ = ["Sequences"]


class Sequences:
    """`ctx.seqs`. Positions are half open: `p0` up to, not including, `p1`; `p1=-1` is the end.

    The tokens of each sequence are remembered for prefix reuse, as long as they are known to be what the cache holds.
    After a context shift only the tokens in front of the gap are reused: the others were computed with what is gone.
    """

    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._tokens: dict[int, list[int] | None] = {}  # None: unknown
        self._exact: dict[int, int] = {}  # tokens at the start that a cold run would have computed alike; default: all
        self._ends = (context._binding.ffi.new("int32_t *"), context._binding.ffi.new("int32_t *"))

    def range(self, seq: int = 0) -> tuple[int, int]:
        """First and last position in the cache, (-1, -1) if empty. Everything between is there.

        Raises:
            OptionError: there is no such sequence.
        """
        first, last = self._ends
        b = self._ctx._binding
        with self._ctx.lock:
            _native.check(b, b.lib.turbo_seq_range(self._ctx.pointer(), seq, first, last), asked=seq)
            return first[0], last[0]

    def next_position(self, seq: int = 0) -> int:
        """Position behind the last token of a sequence; 0 for a model without cache."""
        return self.range(seq)[1] + 1 if self._ctx.facts.has_memory else 0

    def tokens(self, seq: int = 0) -> tuple[int, ...] | None:
        """Tokens the sequence holds from position 0 on, or None where that is not known."""
        known = self._tokens.get(seq, [])
        return None if known is None else tuple(known)

    def clear(self) -> None:
        """Empty the whole cache."""
        with self._ctx.lock:
            if self._ctx.facts.has_memory:
                self._call("turbo_memory_clear")
            self._tokens.clear()
            self._exact.clear()

    def remove(self, seq: int = 0, p0: int = 0, p1: int = -1) -> None:
        """Drop positions of a sequence.

        Raises:
            UnsupportedError: this cache cannot drop a part (recurrent state).
            OptionError: there is no such sequence.
        """
        with self._ctx.lock:
            self.check(seq)
            if self._ctx.facts.is_recurrent and 0 <= p1 <= self.range(seq)[1]:
                raise errors.UnsupportedError(
                    f"positions {p0} to {p1} of sequence {seq} cannot be dropped: a recurrent state keeps them",
                    asked=(p0, p1),
                )
            self._call("turbo_seq_rm", seq, p0, p1)
            if p0 <= 0 and p1 < 0:
                self._exact.pop(seq, None)
            known = self._tokens.get(seq)
            end = -1 if p1 < 0 or (known is not None and p1 >= len(known)) else p1
            if known is not None and end == -1:
                del known[max(p0, 0) :]
            elif known is not None:
                self._tokens[seq] = None

    def copy(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Give a sequence the tokens of another; with separate caches only as a whole.

        Raises:
            UnsupportedError: a part was asked for, and `kv_unified` is off or the model keeps recurrent state.
            OptionError: there is no such sequence.
        """
        with self._ctx.lock:
            self.check(src, dst)
            if self._ctx.facts.is_recurrent and (p0 > 0 or p1 >= 0):
                raise errors.UnsupportedError("a part of a sequence cannot be copied: its recurrent state is one")
            if src != dst:
                self._call("turbo_seq_rm", dst, 0, -1)
            self._call("turbo_seq_cp", src, dst, p0, p1)
            known = self._tokens.get(src, [])
            self._tokens[dst] = None if known is None or p0 > 0 else known[: None if p1 < 0 else p1]
            self._limit(dst, self._exact.get(src))

    def keep(self, seq: int) -> None:
        """Drop every other sequence."""
        with self._ctx.lock:
            self._call("turbo_seq_keep", seq)
            self._tokens = {seq: self._tokens.get(seq, [])}
            self._exact = {seq: self._exact[seq]} if seq in self._exact else {}

    def shift(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add `delta` to positions of a sequence; the cached keys are turned accordingly.

        Raises:
            UnsupportedError: this cache cannot shift (`ctx.facts.can_shift`).
        """
        with self._ctx.lock:
            self._call("turbo_seq_add", seq, p0, p1, delta)
            self._tokens[seq] = None

    def discard_oldest(self, seq: int, n_keep: int) -> int:
        """Context shift: drop half of the tokens behind the first `n_keep` and close the gap.

        A recurrent state beside the cache (hybrid models) keeps what it has taken in of the dropped tokens.

        Returns:
            The number of tokens dropped.

        Raises:
            UnsupportedError: this cache cannot shift.
            ContextFullError: nothing is left to drop.
        """
        with self._ctx.lock:
            if not self._ctx.facts.can_shift:
                raise errors.UnsupportedError(
                    "the positions of this cache cannot be shifted",
                    hint="make n_ctx larger; bf16 keys and recurrent states do not shift",
                )
            n_past = self.next_position(seq)
            n_drop = (n_past - n_keep) // 2
            if n_drop < 1:
                raise errors.ContextFullError(
                    f"a context shift that keeps {n_keep} of {n_past} tokens frees none", asked=n_keep, limit=n_past - 2
                )
            known = self._tokens.get(seq)
            self._call("turbo_seq_rm", seq, n_keep, n_keep + n_drop)
            self._call("turbo_seq_add", seq, n_keep + n_drop, -1, -n_drop)
            self._tokens[seq] = None if known is None else known[:n_keep] + known[n_keep + n_drop :]
            self._limit(seq, 0 if self._ctx.facts.is_recurrent else min(n_keep, self._exact.get(seq, n_keep)))
            return n_drop

    def check(self, *seqs: int) -> None:
        """Raises OptionError unless the context has all these sequences."""
        n = self._ctx.facts.n_seq_max
        for seq in seqs:
            if not 0 <= seq < n:  # the library reads -1 as every sequence
                raise errors.OptionError(f"sequence {seq}, this context has 0 to {n - 1}", asked=seq, limit=n - 1)

    def _call(self, name: str, *arguments: int) -> None:
        b = self._ctx._binding
        status = getattr(b.lib, name)(self._ctx.pointer(), *arguments)
        if status in (b.lib.TURBO_E_MEMORY, b.lib.TURBO_E_DECODE):
            self.forget_all()  # cells may have moved before it failed
        _native.check(b, status, asked=arguments)

    # -- book-keeping, called by Context with its lock held --------------------------------------------------------

    def note(self, seq: int, pos: int, part: list[int]) -> None:
        """Remember tokens that were just decoded."""
        known = self._tokens.setdefault(seq, [])
        if known is not None:
            if pos == len(known):
                known.extend(part)
            else:
                self._tokens[seq] = None

    def forget(self, seq: int) -> None:
        """What the sequence holds is not known any more."""
        self._tokens[seq] = None

    def forget_all(self) -> None:
        """What the sequences hold must not be reused."""
        for seq in range(self._ctx.facts.n_seq_max):
            self._tokens[seq] = None

    def set_tokens(self, seq: int, tokens: Sequence[int] | None, n_exact: int | None = None) -> None:
        """Tell what a restored sequence holds, and how many tokens at its start may be reused (None: all)."""
        self._tokens[seq] = None if tokens is None else list(tokens)
        self._limit(seq, n_exact)

    def n_exact(self, seq: int) -> int | None:
        """Tokens at the start of a sequence that may be reused, None for all: fewer after a context shift."""
        return self._exact.get(seq)

    def _limit(self, seq: int, n_exact: int | None) -> None:
        self._exact.pop(seq, None)
        if n_exact is not None:
            self._exact[seq] = n_exact

    def note_one(self, seq: int, pos: int, token: int) -> None:
        """`note` of one token."""
        known = self._tokens.get(seq)
        if known is not None and pos == len(known):
            known.append(token)
        else:
            self.note(seq, pos, [token])

    def note_batch(self, tokens: list[int], positions: list[int], seqs: list[int]) -> None:
        """Remember tokens of several sequences that were just decoded together."""
        parts: dict[int, tuple[int, list[int]]] = {}
        for token, pos, seq in zip(tokens, positions, seqs):
            first, part = parts.setdefault(seq, (pos, []))
            if pos != first + len(part):  # not one run of positions
                self.forget(seq)
            part.append(token)
        for seq, (first, part) in parts.items():
            if self._tokens.get(seq, []) is not None:
                self.note(seq, first, part)

    def resync(self, seq: int, part: list[int]) -> None:
        """After a decode that failed or was aborted: keep of the known tokens what really got into the cache."""
        known = self._tokens.get(seq, [])
        if known is None or seq < 0 or seq >= self._ctx.facts.n_seq_max or not self._ctx.facts.has_memory:
            return
        self._tokens[seq] = (known + part)[: self.range(seq)[1] + 1]

    def shared_prefix(self, seq: int, wanted: list[int]) -> int:
        """Tokens at the start of `wanted`, its last excluded, that the sequence holds and that may be reused."""
        shared = self._shared(self._tokens.get(seq) or [], wanted)
        return min(shared, self._exact.get(seq, shared))

    def keep_prefix(self, seq: int, wanted: list[int]) -> int:
        """Cut a sequence back to the longest start it shares with `wanted`, all but the last token; returns its length.

        Where the cache cannot be cut back there, it is emptied and 0 returned.
        """
        if not self._ctx.facts.has_memory:
            return 0
        known = self._tokens.get(seq, [])
        first, last = self.range(seq)
        shared = self._shared(known, wanted) if known is not None and last + 1 == len(known) else 0
        shared = min(shared, self._exact.get(seq, shared))
        if shared and not self._window_reaches(shared, first, last):
            shared = 0
        if shared == last + 1:
            return shared
        if shared:
            try:
                self.remove(seq, shared)
                self._exact.pop(seq, None)
                return shared
            except errors.UnsupportedError:
                pass
        self.remove(seq)
        self._tokens[seq] = []
        return 0

    @staticmethod
    def _shared(known: list[int], wanted: list[int]) -> int:
        limit = min(len(known), len(wanted) - 1)
        for i in range(limit):
            if known[i] != wanted[i]:
                return i
        return max(limit, 0)

    def _window_reaches(self, shared: int, first: int, last: int) -> bool:
        """Whether sliding-window layers still hold what a token at position `shared` looks at."""
        if shared == last + 1 or first == 0:
            return True
        return first <= max(shared - self._ctx.model.facts.n_swa, 0)
