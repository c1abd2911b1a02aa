"""Helpers of this folder: KV types, prompts, and continuations whose logits are compared bit by bit."""

from __future__ import annotations

import numpy as np

from pyllama_turbo import Context, Model

KV = (
    "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
    "turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq",
)  # fmt: skip
FEW = ("f16", "q8_0", "turbo3", "turbo4_tcq")  # one of each way of storing keys
ODD = ("gemma2", "gpt-oss", "stablelm", "gemma4")  # architectures of scripts/odd_models.py with a cache


def prompt(model: Model, n: int, salt: int = 0) -> list[int]:
    """n tokens that repeat late, none of them special."""
    n_vocab = model.facts.n_vocab
    return [4 + (11 * i * i + 5 * i + 7 * salt) % (n_vocab - 4) for i in range(n)]


def go_on(ctx: Context, first: int, n: int, seq: int = 0) -> tuple[list[int], np.ndarray]:
    """Decode `first` and then, one by one, the likeliest other token each time: n tokens, and the logits [n, n_vocab].

    Never the same token twice in a row: small random models tend to repeat one, which would prove little.
    """
    tokens, rows, token = [], [], first
    for _ in range(n):
        ctx.decode_one(token, ctx.seqs.next_position(seq), seq)
        rows.append(ctx.logits[0].copy())
        token = int(np.where(np.arange(len(rows[-1])) == token, -np.inf, rows[-1]).argmax())
        tokens.append(token)
    return tokens, np.array(rows)


def same(a: tuple[list[int], np.ndarray], b: tuple[list[int], np.ndarray], rounding: float = 0.0) -> bool:
    """Whether two continuations have the same tokens from the same logits, bit by bit or within `rounding`."""
    return a[0] == b[0] and (np.array_equal(a[1], b[1]) if rounding == 0 else difference(a[1], b[1]) < rounding)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Relative difference of two arrays."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
