#!/usr/bin/env python3
"""Write docs/samples.md: greedy text of real models with f16 and with compressed KV caches, side by side.

make_samples.py MODEL.gguf [MODEL.gguf ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyllama_turbo import Model

ROOT = Path(__file__).resolve().parent.parent
KV = ("f16", "turbo3", "turbo3_tcq", "turbo4_tcq")
PROMPTS = (
    "The lighthouse keeper climbed the stairs every evening because",
    "def fibonacci(n):\n    ",
)
HEAD = """# Samples

Greedy text (temperature 0), {n} tokens, the same prompt and model with the KV cache in f16 and compressed. Small models
drift apart after a few tokens with any change of arithmetic; what matters is that the compressed text reads like the
f16 text. Numbers are in [quality.md](quality.md). Made by `python scripts/make_samples.py MODEL.gguf ...`.
"""


def sample(path: Path, n: int) -> list[str]:
    """The section of one model."""
    lines: list[str] = []
    with Model.open(path, n_gpu_layers=0) as model:
        dims = sorted({layer.head_dim_k for layer in model.layers if layer.has_kv})
        lines.append(f"\n## {model.facts.description}, head dim {', '.join(map(str, dims))}\n")
        for prompt in PROMPTS:
            lines.append(f"Prompt: `{prompt.strip()}`\n")
            for kv in KV:
                with model.context(n_ctx=1024, kv=kv) as ctx:
                    text = ctx.complete(prompt, max_tokens=n, temperature=0)
                    lines.append(
                        f"**{kv}** ({ctx.kv.bits:.4g} bits a value)\n\n```text\n{(prompt + text).strip()}\n```\n"
                    )
    return lines


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("-n", type=int, default=48, help="tokens")
    args = parser.parse_args()
    lines = [HEAD.format(n=args.n)]
    for path in args.models:
        lines += sample(path, args.n)
    (ROOT / "docs" / "samples.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
