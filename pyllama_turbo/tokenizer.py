"""Text to tokens and back, and two helpers of streaming: whole characters, and stop texts never shown in part."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _native, errors

if TYPE_CHECKING:
    from ._native import Binding
    from .model import Model

__all__ = ["StopMatcher", "TextStream", "Tokenizer", "VocabFacts"]

_PIECE_BYTES = 256


@dataclass(frozen=True)
class VocabFacts:
    """Special tokens of a vocabulary; None where there is none."""

    n_tokens: int
    kind: str
    bos: int | None
    eos: int | None
    eot: int | None
    nl: int | None
    pad: int | None
    add_bos: bool
    add_eos: bool


_KINDS = {0: "none", 1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv", 6: "plamo2", 7: "test"}


class Tokenizer:
    """The tokenizer of a model. Thread safe; calls hold the model's lock, so that nothing frees it under them."""

    def __init__(self, binding: Binding, model: Model) -> None:
        self._b = binding
        self._model = model
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._eog: dict[int, bool] = {}
        facts = binding.ffi.new("turbo_vocab_facts *")
        _native.check(binding, binding.lib.turbo_vocab_get_facts(model.pointer(), facts))
        ids = {
            name: None if getattr(facts, name) < 0 else getattr(facts, name)
            for name in ("bos", "eos", "eot", "nl", "pad")
        }
        self.facts = VocabFacts(
            facts.n_tokens,
            _KINDS.get(facts.type, "other"),
            **ids,
            add_bos=bool(facts.add_bos),
            add_eos=bool(facts.add_eos),
        )

    def encode(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: str, or UTF-8 bytes.
            add_special: add BOS and EOS where the model expects them.
            parse_special: read texts such as "<|im_end|>" as the tokens they name. Not for text from strangers.

        Raises:
            UnsupportedError: the model has no tokenizer.
        """
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        ffi, lib = self._b.ffi, self._b.lib
        count = ffi.new("int32_t *")
        room = len(raw) + 8
        for _ in range(2):
            buffer = ffi.new("int32_t[]", room)
            with self._model.lock:
                status = lib.turbo_tokenize(
                    self._model.pointer(), raw, len(raw), buffer, room, add_special, parse_special, count
                )
                _native.check(self._b, status)
            if count[0] <= room:
                return list(ffi.unpack(buffer, count[0])) if count[0] else []
            room = count[0]
        raise errors.InternalError("the tokenizer gave two different lengths for one text")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, which need not be a whole character.

        Args:
            token: its id.
            special: show special tokens as their text instead of nothing.

        Raises:
            OptionError: the id is outside the vocabulary.
        """
        known = self._pieces.get((token, special))
        if known is None:
            known = self._pieces[token, special] = self._read_piece(token, special)
        return known

    def _read_piece(self, token: int, special: bool) -> bytes:
        ffi, lib = self._b.ffi, self._b.lib
        room = _PIECE_BYTES
        while True:
            buffer = ffi.new("char[]", room)
            with self._model.lock:
                status = lib.turbo_token_piece(self._model.pointer(), token, buffer, room, special)
                n = _native.check(self._b, status, asked=token)
            if n <= room:
                return bytes(ffi.buffer(buffer, n))
            room = n

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True, remove_bos: bool = False) -> str:
        """The text of tokens. Bytes that are no valid UTF-8 become U+FFFD.

        Args:
            tokens: ids.
            skip_special: leave special tokens out instead of showing their text.
            remove_bos: leave out the BOS and EOS tokens the model expects.

        Raises:
            OptionError: an id is outside the vocabulary.
        """
        ffi, lib = self._b.ffi, self._b.lib
        ids = ffi.new("int32_t[]", list(tokens))
        count = ffi.new("int32_t *")
        room = 8 * len(tokens) + 64
        while True:
            buffer = ffi.new("char[]", room)
            with self._model.lock:
                status = lib.turbo_detokenize(
                    self._model.pointer(), ids, len(tokens), buffer, room, remove_bos, not skip_special, count
                )
                _native.check(self._b, status)
            if count[0] <= room:
                return bytes(ffi.buffer(buffer, count[0])).decode("utf-8", "replace")
            room = count[0]

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (end of text, end of turn)."""
        known = self._eog.get(token)
        if known is None:
            with self._model.lock:
                status = self._b.lib.turbo_vocab_is_eog(self._model.pointer(), token)
                known = self._eog[token] = _native.check(self._b, status, asked=token) == 1
        return known

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token, which has no text of its own."""
        with self._model.lock:
            status = self._b.lib.turbo_vocab_is_control(self._model.pointer(), token)
            return _native.check(self._b, status, asked=token) == 1

    def __len__(self) -> int:
        return self.facts.n_tokens


class TextStream:
    """Joins the bytes of tokens to text, giving out whole characters only."""

    def __init__(self) -> None:
        self._decoder: Any = codecs.getincrementaldecoder("utf-8")("replace")
        self._between = True  # no character is incomplete

    def feed(self, piece: bytes) -> str:
        """Text that is complete with these bytes."""
        if self._between and piece.isascii():
            return piece.decode("ascii")
        text: str = self._decoder.decode(piece)
        self._between = not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never became whole, or nothing."""
        return str(self._decoder.decode(b"", final=True))


class StopMatcher:
    """Finds stop texts in a stream and holds back what could still become one.

    Args:
        stops: texts that end the generation. They are never shown, not even in part.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Text that can be shown now. `matched` is set when a stop text was found; nothing is shown from there on."""
        if not self._stops or self.matched is not None:
            return text if self.matched is None else ""
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            position, self.matched = min(found)
            shown, self._held = self._held[:position], ""
            return shown
        keep = self._longest_start()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown

    def _longest_start(self) -> int:
        """Length of the longest end of the held text that begins a stop text."""
        limit = min(len(self._held), max(map(len, self._stops)) - 1)
        for length in range(limit, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

    def finish(self) -> str:
        """Held text that did not become a stop text."""
        held, self._held = self._held, ""
        return held if self.matched is None else ""
