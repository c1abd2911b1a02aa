"""Which lines are nearest in meaning to the first? python examples/search.py EMBEDDING_MODEL.gguf < LINES.txt"""

from __future__ import annotations

import sys

from pyllama_turbo import Model, estimate


def main(path: str, question: str, texts: list[str]) -> list[tuple[float, str]]:
    """Similarity and text, the nearest first."""
    print(f"about {estimate(path, 512, embeddings=True).total / 2**20:.0f} MiB")
    with (
        Model.open(path) as model,
        model.context(512, embeddings=True, pooling_type="mean", n_seq_max=16, kv_unified=True) as ctx,
    ):
        vectors = ctx.embed([question, *texts], truncate=True).matrix()
    scores = vectors[1:] @ vectors[0]
    return sorted(zip(scores.tolist(), texts), reverse=True)


if __name__ == "__main__":
    first, *others = sys.stdin.read().splitlines()
    for score, text in main(sys.argv[1], first, others):
        print(f"{score:.3f}  {text}")
