"""Log-softmax over a vocabulary, and the 16-bit form in which a base run keeps its log-probabilities.

Rows are worked on in small groups, so that the temporary arrays stay near the caches: a vocabulary has up to 262,144
entries. Single precision with sums in double, as in llama.cpp's perplexity tool, so that both print the same digits.

A stored row is `row_words(n_vocab)` uint16: float32 scale, float32 lowest log-probability, then one code per token;
log p = scale * code + lowest, at most 16 below the largest logit. Step of the codes: 16 / 65535 = 2.4e-4 at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLOOR", "HEADER_WORDS", "TokenRow", "compare", "decode_row", "encode_rows", "row_words"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U16 = NDArray[np.uint16]

FLOOR = np.float32(16.0)  # log-probabilities this far below the top are not told apart
HEADER_WORDS = 4  # scale and lowest log-probability, as two float32
_GROUP_VALUES = 1 << 20  # values of one group of rows: 4 MiB of float32


@dataclass(frozen=True)
class TokenRow:
    """What a comparison gives, one entry per row.

    Attributes:
        nll: negative log-likelihood of the target token, in nats.
        nll_base: the same by the base.
        kld: KL divergence of base against these logits, in nats.
        dp: change of the target token's probability.
        same_top: whether both prefer the same token.
    """

    nll: F32
    nll_base: F32
    kld: F64
    dp: F32
    same_top: NDArray[np.bool_]


def row_words(n_vocab: int) -> int:
    """uint16 words of one stored row: the header and the codes, their number rounded up to an even one."""
    return 2 * ((n_vocab + 1) // 2) + HEADER_WORDS


def _groups(n_rows: int, n_vocab: int) -> list[slice]:
    step = max(1, _GROUP_VALUES // n_vocab)
    return [slice(first, min(first + step, n_rows)) for first in range(0, n_rows, step)]


def _top_and_log_sum(logits: F32, scratch: F32) -> tuple[F32, F32]:
    """Largest logit of each row, and log of the sum of exp(logit - largest)."""
    top = logits.max(axis=1)
    np.subtract(logits, top[:, None], out=scratch)
    np.exp(scratch, out=scratch)
    return top, np.log(scratch.sum(axis=1, dtype=np.float64)).astype(np.float32)


def encode_rows(logits: F32, targets: NDArray[np.int32], out: U16) -> F32:
    """Store rows of logits as log-probabilities.

    Args:
        logits: [rows, n_vocab].
        targets: [rows], the token that came next.
        out: [rows, row_words(n_vocab)], written.

    Returns:
        Negative log-likelihood of the targets, [rows], in nats.
    """
    n_rows, n_vocab = logits.shape
    nll = np.empty(n_rows, np.float32)
    for part in _groups(n_rows, n_vocab):
        x = np.ascontiguousarray(logits[part], dtype=np.float32)
        scratch = np.empty_like(x)
        top, log_sum = _top_and_log_sum(x, scratch)
        low = np.maximum(x.min(axis=1), top - FLOOR)
        scale = (top - low) / np.float32(65535.0)
        flat = scale == 0  # all tokens equally likely: every code is 0
        inverse = np.float32(1.0) / np.where(flat, np.float32(1.0), scale)
        np.subtract(x, low[:, None], out=scratch)
        np.maximum(scratch, np.float32(0.0), out=scratch)
        scratch *= np.where(flat, np.float32(0.0), inverse)[:, None]
        np.rint(scratch, out=scratch)
        rows = out[part]
        rows[:, HEADER_WORDS + n_vocab :] = 0
        rows[:, HEADER_WORDS : HEADER_WORDS + n_vocab] = scratch
        header = np.stack([scale, low - top - log_sum], axis=1).astype(np.float32)
        rows[:, :HEADER_WORDS] = header.view(np.uint16)
        nll[part] = top + log_sum - x[np.arange(len(x)), targets[part]]
    return nll


def decode_row(rows: U16, n_vocab: int) -> F32:
    """Log-probabilities of stored rows: [rows, row_words] uint16 to [rows, n_vocab] float32."""
    header = np.ascontiguousarray(rows[:, :HEADER_WORDS]).view(np.float32)
    values = rows[:, HEADER_WORDS : HEADER_WORDS + n_vocab].astype(np.float32)
    values *= header[:, :1]
    values += header[:, 1:2]
    return values


def compare(logits: F32, base: U16, targets: NDArray[np.int32]) -> TokenRow:
    """Compare logits with the stored rows of a base.

    KL divergence sums base tokens whose log-probability is above -16, as llama.cpp does; the rest holds less than
    n_vocab * 1e-7 of the probability.

    Args:
        logits: [rows, n_vocab].
        base: [rows, row_words(n_vocab)].
        targets: [rows], the token that came next.
    """
    n_rows, n_vocab = logits.shape
    nll, nll_base, dp = (np.empty(n_rows, np.float32) for _ in range(3))
    kld, same = np.empty(n_rows, np.float64), np.empty(n_rows, np.bool_)
    for part in _groups(n_rows, n_vocab):
        x = np.ascontiguousarray(logits[part], dtype=np.float32)
        each, target = np.arange(len(x)), targets[part]
        scratch = np.empty_like(x)
        top, log_sum = _top_and_log_sum(x, scratch)
        log_z = top + log_sum
        log_base = decode_row(base[part], n_vocab)
        nll[part] = log_z - x[each, target]
        nll_base[part] = -log_base[each, target]
        same[part] = x.argmax(axis=1) == log_base.argmax(axis=1)
        np.exp(log_base, out=scratch)
        scratch[log_base <= -FLOOR] = 0.0
        log_base -= x
        log_base += log_z[:, None]
        log_base *= scratch
        kld[part] = log_base.sum(axis=1, dtype=np.float64)
    np.subtract(np.exp(-nll), np.exp(-nll_base), out=dp)
    return TokenRow(nll, nll_base, kld, dp, same)
