"""Embeddings: texts as vectors, pooled per text or one a token.

    with model.context(2048, embeddings=True, pooling_type="mean", n_seq_max=8, kv_unified=True) as ctx:
        vectors = ctx.embed(["a text", "another"]).matrix()
        similarity = vectors @ vectors.T

Several texts share a batch where that gives the same numbers: in models without cache, and with `kv_unified`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .context import Context

__all__ = ["Embeddings", "embed", "normalized"]

POOLINGS = ("none", "mean", "cls", "last", "rank")  # by the library's number
_INT16_MAX = 32760.0  # the largest absolute value after normalisation 0, as in llama.cpp


@dataclass(frozen=True)
class Embeddings:
    """What `embed` returns.

    Attributes:
        vectors: one float32 array a text: [n_embd], with pooling "none" [n_tokens, n_embd], with "rank" the scores.
        n_tokens: tokens of each text, as computed.
        n_truncated: texts that were cut.
        pooling: how token embeddings became one.
    """

    vectors: tuple[NDArray[np.float32], ...]
    n_tokens: tuple[int, ...]
    n_truncated: int
    pooling: str

    def matrix(self) -> NDArray[np.float32]:
        """The vectors of all texts, [n_texts, n_embd]. Raises UnsupportedError without pooling."""
        import numpy as np

        if self.pooling == "none":
            raise errors.UnsupportedError("without pooling, texts have as many vectors as tokens", hint="use `vectors`")
        return np.stack(self.vectors)


def normalized(vectors: NDArray[np.float32], kind: int) -> NDArray[np.float32]:
    """Vectors (along the last axis) divided by their norm; llama.cpp's numbers.

    Args:
        vectors: float32 [..., n].
        kind: -1 as they are, 0 the largest absolute value becomes 32760, 1 taxicab, 2 Euclidean, p > 2 p-norm.
            A zero vector stays as it is.
    """
    import numpy as np

    if kind < 0:
        return vectors
    size = np.abs(vectors.astype(np.float64))
    if kind == 0:
        norm = size.max(axis=-1, keepdims=True) / _INT16_MAX
    else:
        norm = (size**kind).sum(axis=-1, keepdims=True) ** (1.0 / kind)
    result: NDArray[np.float32] = (vectors / np.where(norm > 0, norm, 1.0)).astype(np.float32)
    return result


def embed(
    context: Context,
    texts: str | Sequence[str | Sequence[int]],
    *,
    normalize: int | bool = 2,
    truncate: bool = False,
) -> Embeddings:
    """Compute embeddings. What the cache held is gone afterwards.

    Args:
        context: made with `embeddings=True`; its `pooling_type` decides what comes out.
        texts: one text or several, each a str (tokenized with the model's special tokens) or token ids.
        normalize: see `normalized`; True is 2 and False is -1. Scores of pooling "rank" stay as they are.
        truncate: cut a text that is too long instead of refusing it.

    Raises:
        UnsupportedError: the context was made without `embeddings=True`.
        ContextFullError: a text is longer than one computation takes; `asked` and `limit` are token counts.
        BusyError: the context is generating.
        OptionError: there are no texts, one is empty, or `normalize` is below -1.
    """
    if not context.options.embeddings:
        raise errors.UnsupportedError(
            "the context was made without embeddings", hint="make it with embeddings=True and a pooling_type"
        )
    kind = {True: 2, False: -1}[normalize] if isinstance(normalize, bool) else normalize
    if kind < -1:
        raise errors.OptionError(f"normalize is {kind}", asked=kind, hint="-1 none, 0 int16, 1 taxicab, 2 Euclidean, p")
    items = [texts] if isinstance(texts, str) else list(texts)
    if not items:
        raise errors.OptionError("there are no texts")
    lists = [_tokens(context, i, item) for i, item in enumerate(items)]
    limit = min(context.facts.n_batch, context.facts.n_ubatch, context.facts.n_ctx_seq)
    n_truncated = sum(len(ids) > limit for ids in lists)
    if n_truncated and not truncate:
        _refuse(lists, limit)
    lists = [ids[:limit] for ids in lists]
    pooling = POOLINGS[context.facts.pooling_type]
    user = object()
    context.claim(user)
    try:
        vectors = [v for group in _groups(context, lists, limit) for v in _run(context, group, pooling)]
    finally:
        if not context.closed:
            context.seqs.clear()
        context.release(user)
    if pooling != "rank":
        vectors = [normalized(v, kind) for v in vectors]
    return Embeddings(tuple(vectors), tuple(map(len, lists)), n_truncated, pooling)


def _tokens(context: Context, index: int, item: str | Sequence[int]) -> list[int]:
    ids = context.model.tokenizer.encode(item) if isinstance(item, str) else list(item)
    if not ids:
        raise errors.OptionError(f"text {index} has no tokens", asked=item)
    return ids


def _refuse(lists: list[list[int]], limit: int) -> None:
    index, longest = max(enumerate(map(len, lists)), key=lambda pair: pair[1])
    raise errors.ContextFullError(
        f"text {index} has {longest} tokens, this context computes {limit} at once",
        asked=longest,
        limit=limit,
        hint="make the context with larger n_ctx, n_batch and n_ubatch, or pass truncate=True",
    )


def _groups(context: Context, lists: list[list[int]], limit: int) -> Iterator[list[list[int]]]:
    """Texts that are computed together, in order."""
    facts = context.facts
    together = facts.n_seq_max if facts.kv_unified or not facts.has_memory else 1
    group: list[list[int]] = []
    for ids in lists:
        if group and (len(group) == together or sum(map(len, group)) + len(ids) > limit):
            yield group
            group = []
        group.append(ids)
    yield group


def _run(context: Context, group: list[list[int]], pooling: str) -> Iterator[NDArray[np.float32]]:
    import numpy as np

    context.seqs.clear()
    tokens = [t for ids in group for t in ids]
    context.decode_batch(
        tokens,
        [i for ids in group for i in range(len(ids))],
        [seq for seq, ids in enumerate(group) for _ in ids],
        [True] * len(tokens),
    )
    first = 0
    for seq, ids in enumerate(group):
        if pooling == "none":
            yield np.stack([context.embedding(index=first + i) for i in range(len(ids))])
        else:
            yield context.embedding(seq=seq)
        first += len(ids)
