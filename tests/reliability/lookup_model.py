"""A model that looks things up: one layer whose attention finds the one key that matches the query, by construction.

Embeddings are [key | value]. The key matrix copies the first half, the query matrix scales it by GAIN, the value matrix
copies the second half; positions turn nothing where the caller scales RoPE away. Tokens, in this order:
  fillers   random keys and values: what a text is made of;
  needles   a key and a value each, of their own;
  queries   the key of a needle, and no value: the attention's output is that needle's value;
  answers   their output rows are the needles' values, so that the likeliest token names what was found.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from gguf_writer import GGUFWriter
from tiny_vocab import add_vocabulary

from pyllama_turbo import Context, Model

__all__ = ["LENGTHS", "check_recall", "write_lookup_model"]

N_NEEDLES, N_VOCAB, WIDTH = 64, 1024, 128
# A matching score is GAIN * sqrt(WIDTH), the others have a deviation of GAIN: beside 32,768 of them the match still
# gets all but a ten-thousandth of the weight.
GAIN = 2.0
_NEEDLES = N_VOCAB - 3 * N_NEEDLES
LENGTHS = (1000, 4096, 16384, 32768)
# No position turns anything: what is found depends on the stored keys and values alone.
KEYWORDS = {"rope_scaling": "linear", "rope_freq_scale": 1e-9, "n_batch": 2048, "n_ubatch": 512}


def filler(i: int) -> int:
    """The i-th token of a text of fillers."""
    return 4 + (7919 * i + i * i // 5) % (_NEEDLES - 4)


def needle(i: int) -> int:
    """Token that carries needle i."""
    return _NEEDLES + i


def query(i: int) -> int:
    """Token that asks for needle i."""
    return _NEEDLES + N_NEEDLES + i


def answer(i: int) -> int:
    """Token that names needle i."""
    return _NEEDLES + 2 * N_NEEDLES + i


def write_lookup_model(path: Path, n_ctx_train: int) -> Path:
    """Write the model and return its path."""
    rng = np.random.default_rng(11)
    keys, values = (rng.standard_normal((N_VOCAB, WIDTH)).astype(np.float32) for _ in range(2))
    needles, queries = slice(_NEEDLES, _NEEDLES + N_NEEDLES), slice(_NEEDLES + N_NEEDLES, _NEEDLES + 2 * N_NEEDLES)
    keys[queries], values[queries] = keys[needles], 0.0
    output = np.zeros((N_VOCAB, 2 * WIDTH), np.float32)
    output[_NEEDLES + 2 * N_NEEDLES :, WIDTH:] = values[needles]
    one, none = np.eye(WIDTH, dtype=np.float32), np.zeros((WIDTH, WIDTH), np.float32)
    embeddings = np.concatenate([keys, values], axis=1)
    # The norm before the attention gives every token the same length; queries have only half of the numbers.
    embeddings[queries] /= np.sqrt(2.0)
    tensors = {
        "token_embd": embeddings,
        "output": output,
        "blk.0.attn_q": np.concatenate([GAIN * one, none], axis=1),
        "blk.0.attn_k": np.concatenate([one, none], axis=1),
        "blk.0.attn_v": np.concatenate([none, one], axis=1),
        "blk.0.attn_output": np.concatenate([none, 4.0 * one], axis=0),
        "blk.0.ffn_gate": np.zeros((32, 2 * WIDTH), np.float32),
        "blk.0.ffn_up": np.zeros((32, 2 * WIDTH), np.float32),
        "blk.0.ffn_down": np.zeros((2 * WIDTH, 32), np.float32),
    }
    writer = GGUFWriter(path, "llama")
    facts: dict[str, str | int | float] = {
        "general.name": "lookup", ".context_length": n_ctx_train, ".embedding_length": 2 * WIDTH, ".block_count": 1,
        ".feed_forward_length": 32, ".attention.head_count": 1, ".attention.head_count_kv": 1,
        ".attention.key_length": WIDTH, ".attention.value_length": WIDTH, ".rope.dimension_count": WIDTH,
        ".attention.layer_norm_rms_epsilon": 1e-5, ".rope.freq_base": 10000.0, ".vocab_size": N_VOCAB,
    }  # fmt: skip
    for key, value in facts.items():
        writer.set(key, value)
    add_vocabulary(writer, N_VOCAB, None, empty=False)
    for name, tensor in tensors.items():
        writer.add(f"{name}.weight", tensor)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add(f"{name}.weight", np.ones(2 * WIDTH, np.float32))
    return writer.write()


def found(ctx: Context, i: int) -> int:
    """The token that the model names when it is asked for needle i; the cache is left as it was."""
    at = ctx.seqs.next_position()
    ctx.decode([query(i)])
    token = int(ctx.logits[0].argmax())
    ctx.seqs.remove(0, at)
    return token


def check_recall(model: Model, kv: str) -> None:
    """Fails unless every needle is found at each of `LENGTHS`, and none where there is none."""
    text = [filler(i) for i in range(LENGTHS[-1])]
    places = {i: (2 * i + 1) * LENGTHS[-1] // (2 * N_NEEDLES) for i in range(N_NEEDLES - 2)}
    places |= {N_NEEDLES - 2: 3, N_NEEDLES - 1: 700}  # the very beginning, and before the first 1,000
    for i, place in places.items():
        text[place] = needle(i)
    with model.context(LENGTHS[-1] + 512, kv=kv, n_threads=2, **KEYWORDS) as ctx:
        for length in LENGTHS:
            ctx.decode(text[ctx.seqs.next_position() : length])
            there = [i for i, place in places.items() if place < length]
            wrong = [i for i in there if found(ctx, i) != answer(i)]
            assert not wrong, f"{len(wrong)} of {len(there)} were not found in {length} tokens"
        # What is not in the text is not found: the answers come from the cache and from nowhere else.
        ctx.seqs.clear()
        ctx.decode([filler(i) for i in range(1000)])
        assert sum(found(ctx, i) == answer(i) for i in range(N_NEEDLES)) < N_NEEDLES // 4
