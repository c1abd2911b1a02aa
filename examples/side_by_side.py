"""Several prompts in one context, batched: python examples/side_by_side.py model.gguf"""

from __future__ import annotations

import sys

from pyllama_turbo import Model

PROMPTS = ("The sea is", "The desert is", "The forest is")


def main(path: str) -> None:
    """Generate for all prompts at once; events say which one they belong to."""
    with Model.open(path) as model, model.context(n_ctx=3072, n_seq_max=len(PROMPTS), kv="turbo3") as ctx:
        texts = [""] * len(PROMPTS)
        for event in ctx.generate_many(PROMPTS, max_tokens=16, temperature=0):
            texts[event.job] += event.text
        for prompt, text in zip(PROMPTS, texts):
            print(f"{prompt}: {text!r}")


if __name__ == "__main__":
    main(sys.argv[1])
