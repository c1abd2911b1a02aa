"""Write a tiny random encoder (BERT) for tests of embeddings: no KV cache, no causal mask, a classification head."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the sibling modules, also when loaded by path

from gguf_writer import GGUFWriter  # noqa: E402
from tiny_vocab import add_vocabulary  # noqa: E402

N_EMBD, N_HEAD, N_FF, N_VOCAB, N_CTX, N_LAYER, N_LABELS = 64, 4, 128, 512, 512, 2, 3


def write_encoder(path: str | os.PathLike[str], *, head: bool = True, pooling: int = 2, seed: int = 0) -> Path:
    """Write the model and return its path.

    Args:
        path: the file to write.
        head: with a classification head of `N_LABELS` scores.
        pooling: what the file names as its pooling: 1 mean, 2 cls, 3 last, 4 rank.
        seed: of the weights.
    """
    writer, rng = GGUFWriter(path, "bert"), np.random.default_rng(seed)

    def matrix(name: str, n_in: int, n_out: int, gain: float = 1.0) -> None:
        writer.add(name, rng.standard_normal((n_out, n_in), dtype=np.float32) * np.float32(gain / n_in**0.5))

    def vector(name: str, mean: float, n: int = N_EMBD) -> None:
        values: npt.NDArray[np.float32] = rng.standard_normal(n, dtype=np.float32) * np.float32(0.1) + np.float32(mean)
        writer.add(name, values)

    for key, value in (
        (".context_length", N_CTX), (".embedding_length", N_EMBD), (".block_count", N_LAYER), (".vocab_size", N_VOCAB),
        (".feed_forward_length", N_FF), (".attention.head_count", N_HEAD), (".attention.layer_norm_epsilon", 1e-5),
        (".attention.causal", False), (".pooling_type", pooling), ("tokenizer.ggml.token_type_count", 2),
    ):  # fmt: skip
        writer.set(key, value)
    add_vocabulary(writer, N_VOCAB, None)
    for name, rows in (("token_embd", N_VOCAB), ("position_embd", N_CTX), ("token_types", 2)):
        matrix(f"{name}.weight", N_EMBD, rows, gain=N_EMBD**0.5)
    for layer in range(N_LAYER):
        p = f"blk.{layer}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{p}{part}.weight", N_EMBD, N_EMBD)
        matrix(f"{p}ffn_up.weight", N_EMBD, N_FF)
        matrix(f"{p}ffn_down.weight", N_FF, N_EMBD)
    for norm in (
        "token_embd_norm",
        *(f"blk.{i}.{x}_norm" for i in range(N_LAYER) for x in ("attn_output", "layer_output")),
    ):
        vector(f"{norm}.weight", 1.0)
        vector(f"{norm}.bias", 0.0)
    if head:
        writer.set(".classifier.output_labels", [f"label{i}" for i in range(N_LABELS)])
        matrix("cls.weight", N_EMBD, N_EMBD)
        vector("cls.bias", 0.0)
        matrix("cls.output.weight", N_EMBD, N_LABELS)
        vector("cls.output.bias", 0.0, N_LABELS)
    return writer.write()
