"""Embeddings in llama-cpp-python's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from .responses import Response

if TYPE_CHECKING:
    from .base import LlamaBase


def embed(llama: LlamaBase, texts: Sequence[str], *, normalize: bool, truncate: bool) -> tuple[list[Any], int]:
    """A vector for each text (or, without pooling, one for each of its tokens), and the number of tokens.

    Raises:
        UnsupportedError: the object was made without `embedding=True`.
        ContextFullError: a text is longer than a batch and `truncate` is off.
    """
    if not llama.options.embedding:
        raise UnsupportedError(
            "this object computes no embeddings", hint="make it with Llama(path, embedding=True)", asked="embed"
        )
    found = llama.ctx.embed(list(texts), normalize=2 if normalize else -1, truncate=truncate)
    return [vector.tolist() for vector in found.vectors], sum(found.n_tokens)


def response(llama: LlamaBase, vectors: Sequence[Any], n_tokens: int, model: str | None) -> Response:
    """OpenAI's response for vectors."""
    return {
        "object": "list",
        "data": [{"object": "embedding", "embedding": v, "index": i} for i, v in enumerate(vectors)],
        "model": model or llama.model_path,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
