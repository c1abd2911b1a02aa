#!/usr/bin/env python3
"""Measure the quality of KV pairs on several models, on both paths, into docs/results/quality.jsonl.

Runs `pyllama-turbo kld` once for each model and path; what the result file holds already is not measured again, so an
interrupted run goes on where it stood. With the default 17 chunks of 512 tokens, 4,335 tokens are scored for each pair.
A pair computes 8,704 tokens on the prefill path and as many on the decode path, half of them one at a time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_MODELS = ("smollm2", "gemma-270m", "qwen-0.5b", "qwen-1.5b")
PAIRS = "f16,q8_0,turbo4_tcq,turbo4,q4_0,turbo3_tcq,turbo3"


def main() -> int:
    """Command line entry; the largest exit code of the single runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of fetched models, or GGUF files")
    parser.add_argument("--kv", default=PAIRS, help="KV pairs")
    parser.add_argument("--path", default="both", choices=("prefill", "decode", "both"))
    parser.add_argument("--chunks", type=int, default=17)
    parser.add_argument("--parallel", type=int, default=1, help="chunks side by side on the decode path")
    parser.add_argument("--range", help="score these positions of one long text instead, as 7680-8191")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "quality.jsonl")
    args, rest = parser.parse_known_args()
    from pyllama_turbo.cli import main as run

    worst = 0
    for model in args.models or DEFAULT_MODELS:
        for path in ("prefill", "decode") if args.path == "both" else (args.path,):
            command = ["kld", "-m", model, "-kv", args.kv, "--path", path, "--out", str(args.out), *rest]
            command += ["--range", args.range] if args.range else ["--chunks", str(args.chunks)]
            command += ["--parallel", str(args.parallel)] if path == "decode" else []
            worst = max(worst, run(command))
    return worst


if __name__ == "__main__":
    sys.exit(main())
