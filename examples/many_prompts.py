"""Several prompts in one context, decoded together: python examples/many_prompts.py MODEL.gguf PROMPT ..."""

from __future__ import annotations

import sys

from pyllama_turbo import Model


def main(path: str, prompts: list[str], max_tokens: int = 64) -> list[str]:
    """Complete all prompts, four at a time, and return the texts."""
    texts = [""] * len(prompts)
    with Model.open(path) as model, model.context(4 * 4096, n_seq_max=4, kv="turbo3") as ctx:
        for event in ctx.generate_many(prompts, max_tokens=max_tokens, seed=1, logprobs=3):
            texts[event.job] += event.text
            if event.finish_reason:
                print(f"job {event.job}: {event.n_generated} tokens, {event.finish_reason}")
    return texts


if __name__ == "__main__":
    for text in main(sys.argv[1], sys.argv[2:]):
        print(text)
