"""Small models the targets stand on: a runnable one, and vocabularies of every kind llama.cpp tokenizes by."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from gguf_writer import GGUFWriter  # noqa: E402
from make_model import write_model  # noqa: E402
from tiny_vocab import BYTE, CONTROL, NORMAL, UNKNOWN, vocabulary  # noqa: E402

N_VOCAB = 354
SIZES = {"n_layer": 1, "n_head": 1, "n_head_kv": 1, "head_dim": 64, "n_embd": 64, "n_ff": 32, "n_vocab": N_VOCAB}
ARCHS = ("llama", "qwen2", "qwen3", "gemma3", "qwen3moe")

# Pre-tokenizers whose splitting rules differ: some have code of their own, the others run as regular expressions.
PRE_TOKENIZERS = (
    "default",
    "llama-bpe",
    "deepseek-llm",
    "deepseek-coder",
    "qwen2",
    "gpt-2",
    "tekken",
    "gpt-4o",
    "bloom",
)
_PIECES = ["th", "he", "in", "er", "the", "\u0120t", "\u0120the", "11", "..", "ing"]
_MERGES = ["t h", "h e", "i n", "e r", "th e", "\u0120 t", "\u0120 the", "1 1", ". .", "in g"]


def write_runnable(path: Path, arch: str = "llama", *, vocab: bool = True) -> Path:
    """A tiny model of one layer with a head dim of 64."""
    experts = {"n_expert": 2, "n_expert_used": 1} if arch == "qwen3moe" else {}
    return write_model(path, arch, **SIZES, **experts, vocab=vocab)


def byte_symbols() -> list[str]:
    """The printable character byte-level BPE uses for each byte, in the order of the bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(others)) for b in range(256)]


def _bpe(w: GGUFWriter, pre: str) -> None:
    tokens = [*byte_symbols(), *_PIECES, "<|end|>"]
    w.set("tokenizer.ggml.model", "gpt2")
    w.set("tokenizer.ggml.pre", pre)
    w.set("tokenizer.ggml.tokens", tokens)
    w.set("tokenizer.ggml.token_type", [NORMAL] * (len(tokens) - 1) + [CONTROL])
    w.set("tokenizer.ggml.merges", _MERGES)
    w.set("tokenizer.ggml.eos_token_id", len(tokens) - 1)
    w.set("tokenizer.ggml.bos_token_id", len(tokens) - 1)


def _pieces(w: GGUFWriter, model: str) -> None:
    tokens, scores, classes = vocabulary(N_VOCAB)
    w.set("tokenizer.ggml.model", model)
    w.set("tokenizer.ggml.tokens", tokens)
    w.set("tokenizer.ggml.scores", scores)
    w.set("tokenizer.ggml.token_type", classes)
    w.set("tokenizer.ggml.unknown_token_id", 0)
    w.set("tokenizer.ggml.bos_token_id", 1)
    w.set("tokenizer.ggml.eos_token_id", 2)


def _words(w: GGUFWriter) -> None:
    letters = [chr(c) for c in range(33, 127)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *("\u2581" + c for c in letters), *letters, "\u2581the"]
    w.set("tokenizer.ggml.model", "bert")
    w.set("tokenizer.ggml.tokens", tokens)
    w.set("tokenizer.ggml.token_type", [CONTROL, UNKNOWN] + [CONTROL] * 3 + [NORMAL] * (len(tokens) - 5))
    w.set("tokenizer.ggml.unknown_token_id", 1)
    w.set("tokenizer.ggml.seperator_token_id", 3)
    w.set("tokenizer.ggml.cls_token_id", 2)


def _trie(w: GGUFWriter) -> None:
    tokens = ["<s>", *(f"\\x{b:02x}" for b in range(256)), "the", " the", "\\n\\n"]
    w.set("tokenizer.ggml.model", "rwkv")
    w.set("tokenizer.ggml.tokens", tokens)
    w.set("tokenizer.ggml.token_type", [CONTROL] + [BYTE] * 256 + [NORMAL] * 3)


def write_vocabularies(folder: Path) -> list[Path]:
    """One file without weights for each kind of vocabulary and each pre-tokenizer; to be opened with `vocab_only`."""
    kinds = [("llama", _pieces, ("llama",)), ("t5", _pieces, ("t5",)), ("bert", _words, ()), ("rwkv", _trie, ())]
    kinds += [(f"bpe-{pre}", _bpe, (pre,)) for pre in PRE_TOKENIZERS]
    written = []
    for name, fill, arguments in kinds:
        writer = GGUFWriter(folder / f"{name}.gguf", "llama")
        for key, value in {
            ".block_count": 1, ".context_length": 64, ".embedding_length": 64, ".feed_forward_length": 32,
            ".attention.head_count": 1, ".attention.layer_norm_rms_epsilon": 1e-6,
        }.items():  # fmt: skip
            writer.set(key, value)
        fill(writer, *arguments)
        written.append(writer.write())
    return written
