"""Texts to measure on: a file, or what every Python installation has.

The built-in text is CPython's own: the language reference as shipped for `help()` (prose) and modules of the standard
library (code), both under the PSF licence. It differs between Python versions, so each result carries the hash of its
tokens.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import OptionError

__all__ = ["builtin_tokens", "code", "file_tokens", "prose"]

Encode = Callable[[str], list[int]]

_MODULES = (
    "argparse", "ast", "calendar", "configparser", "csv", "datetime", "decimal", "difflib", "fractions", "heapq",
    "inspect", "ipaddress", "json.decoder", "json.encoder", "logging", "mailbox", "optparse", "pathlib", "pickle",
    "plistlib", "pprint", "random", "sched", "shutil", "statistics", "string", "subprocess", "tarfile", "textwrap",
    "threading", "tokenize", "traceback", "typing", "unittest.mock", "uuid", "zipfile",
)  # fmt: skip


def prose() -> str:
    """The chapters of the Python language reference, by title."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def code() -> str:
    """Sources of modules of the standard library, those that this installation has."""
    parts = []
    for name in _MODULES:
        try:
            parts.append(inspect.getsource(importlib.import_module(name)))
        except (ImportError, OSError):
            continue
    return "\n\n".join(parts)


def _prefix(encode: Encode, text: str, n: int) -> list[int]:
    """The first `n` tokens of a text, without tokenizing much more than that."""
    n_chars = 4 * n + 1024
    while True:
        tokens = encode(text[:n_chars])
        if len(tokens) > n or n_chars >= len(text):
            return tokens[:n]
        n_chars *= 2


def builtin_tokens(encode: Encode, n: int, piece: int = 512) -> list[int]:
    """`n` tokens of prose and code in turns of `piece` tokens.

    Args:
        encode: text to token ids, without special tokens.
        n: tokens wanted.
        piece: length of a turn; with the length of a chunk, chunks are prose and code in turns.

    Raises:
        OptionError: the texts are shorter than that.
    """
    n_pieces = -(-n // piece)
    sources = [_prefix(encode, text, (n_pieces + 1) // 2 * piece) for text in (prose(), code())]
    joined: list[int] = []
    for i in range(n_pieces):
        joined += sources[i % 2][i // 2 * piece : (i // 2 + 1) * piece]
    if len(joined) < n:
        raise OptionError(f"the built-in text has {len(joined)} tokens", asked=n, limit=len(joined), hint="give a file")
    return joined[:n]


def file_tokens(encode: Encode, paths: Sequence[Path], n: int | None = None, piece: int = 512) -> list[int]:
    """Tokens of text files: one as it is, several in turns of `piece` tokens; all, or the first `n`.

    For the tokens that llama.cpp's perplexity tool would score, give one file and an `encode` that adds BOS where the
    model expects it.

    Raises:
        OSError: a file cannot be read.
        OptionError: they are shorter than `n`.
    """
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    if len(texts) == 1:
        joined = encode(texts[0]) if n is None else _prefix(encode, texts[0], n)
    else:
        share = None if n is None else -(-n // (piece * len(texts))) * piece
        sources = [encode(text) if share is None else _prefix(encode, text, share) for text in texts]
        joined = []
        for begin in range(0, min(len(s) for s in sources), piece):
            for source in sources:
                joined += source[begin : begin + piece]
    if n is not None and len(joined) < n:
        raise OptionError(f"the text has {len(joined)} tokens", asked=n, limit=len(joined), hint="give a longer one")
    return joined if n is None else joined[:n]
