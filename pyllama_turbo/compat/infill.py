"""Filling in between a prefix and a suffix, for models trained on it (code models mostly)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from .base import LlamaBase

# Metadata keys, the newer first, and the texts of the tokens in models that do not name them.
_KEYS = {
    "prefix": ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    "suffix": ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    "middle": ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
}
_TEXTS = {
    "prefix": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<PRE>", "▁<PRE>", "<|fim_begin|>"),
    "suffix": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<SUF>", "▁<SUF>", "<|fim_hole|>"),
    "middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<MID>", "▁<MID>", "<|fim_end|>"),
}


def _mark(llama: LlamaBase, which: str) -> int | None:
    for key in _KEYS[which]:
        if key in llama.metadata:
            return int(llama.metadata[key])
    for text in _TEXTS[which]:
        tokens = llama.tokenize(text, add_bos=False, special=True)
        if len(tokens) == 1 and llama.model.tokenizer.is_control(tokens[0]):
            return tokens[0]
    return None


def infill_tokens(llama: LlamaBase, prefix: str, suffix: str) -> list[int]:
    """Prompt that asks for what stands between two texts.

    Raises:
        UnsupportedError: the model has no tokens for it.
    """
    marks = {which: _mark(llama, which) for which in _KEYS}
    missing = [which for which, token in marks.items() if token is None]
    if missing:
        raise UnsupportedError(
            f"this model cannot fill in a gap: it has no token that marks the {', the '.join(missing)}",
            hint="leave suffix out, or use a model trained to fill in",
        )
    before = [marks["prefix"], *llama.tokenize(prefix, add_bos=False)]
    after = [marks["suffix"], *llama.tokenize(suffix, add_bos=False)]
    parts = [*after, *before] if llama.spm_infill else [*before, *after]
    facts = llama.model.tokenizer.facts
    start = [facts.bos] if facts.add_bos and facts.bos is not None else []
    return [token for token in [*start, *parts, marks["middle"]] if token is not None]
