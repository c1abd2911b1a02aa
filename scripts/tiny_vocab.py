"""A small SentencePiece-style vocabulary made from nothing: three specials, 256 byte tokens, ASCII, letter groups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from string import ascii_lowercase

from gguf_writer import GGUFWriter

SPACE = "\u2581"  # SentencePiece's visible space
N_SPECIAL = 3
N_MIN = N_SPECIAL + 256 + 95

# Token classes of the GGUF format.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

COMMON_PAIRS = "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def _groups() -> Iterator[str]:
    """Pieces of two letters and more, the likeliest first, without end in practice (four letters: half a million)."""
    yield from (SPACE + letter for letter in ascii_lowercase)
    common = COMMON_PAIRS.split()
    yield from common
    yield from (SPACE + pair for pair in common)
    yield from ("".join(p) for p in product(ascii_lowercase, repeat=2) if "".join(p) not in common)
    for length in (3, 4):
        yield from ("".join(p) for p in product(ascii_lowercase, repeat=length))


def vocabulary(n_vocab: int) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and classes of a vocabulary of `n_vocab` entries (at least `N_MIN`)."""
    if n_vocab < N_MIN:
        raise ValueError(f"n_vocab {n_vocab} is below {N_MIN}: specials, bytes and ASCII alone")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    classes = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    tokens += [SPACE] + [chr(c) for c in range(33, 127)]
    for piece, _ in zip(_groups(), range(n_vocab - len(tokens)), strict=False):
        tokens.append(piece)
    if len(tokens) < n_vocab:
        raise ValueError(f"n_vocab {n_vocab} is too large")
    classes += [NORMAL] * (n_vocab - len(classes))
    # A better score merges first. Longer pieces must win over their parts, so their scores rise with length.
    scores = [0.0] * N_MIN + [float(len(t.encode()) * 1_000_000 - i) / 1e6 for i, t in enumerate(tokens[N_MIN:])]
    return tokens, scores, classes


def add_vocabulary(writer: GGUFWriter, n_vocab: int, chat_template: str | None, *, empty: bool = False) -> None:
    """Write the tokenizer's metadata; `empty` writes a model that has none."""
    if empty:
        writer.set("tokenizer.ggml.model", "no_vocab")
        return
    tokens, scores, classes = vocabulary(n_vocab)
    writer.set("tokenizer.ggml.model", "llama")
    writer.set("tokenizer.ggml.tokens", tokens)
    writer.set("tokenizer.ggml.scores", scores)
    writer.set("tokenizer.ggml.token_type", classes)
    writer.set("tokenizer.ggml.unknown_token_id", 0)
    writer.set("tokenizer.ggml.bos_token_id", 1)
    writer.set("tokenizer.ggml.eos_token_id", 2)
    writer.set("tokenizer.ggml.add_bos_token", True)
    writer.set("tokenizer.ggml.add_eos_token", False)
    if chat_template is not None:
        writer.set("tokenizer.chat_template", chat_template)
