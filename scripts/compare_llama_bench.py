#!/usr/bin/env python3
"""Token rates of this package beside upstream's llama-bench, on one library, in turns.

    cmake -DTURBO_UPSTREAM_TOOLS=ON native/build/cpu && cmake --build native/build/cpu --target llama-bench
    python scripts/compare_llama_bench.py MODEL.gguf

Three things are timed in every round, with the same threads, batch sizes and KV type: llama-bench's tg test, the same
decode calls made from Python (`Context.decode_one`, what `pyllama-turbo bench` times), and the whole token loop with
greedy sampling (`Context.generate`). Prompts (pp) are compared the same way. Ranges that overlap are within the spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pyllama_turbo import Model  # noqa: E402
from pyllama_turbo._cpu import default_threads  # noqa: E402
from pyllama_turbo.bench.fill import random_tokens  # noqa: E402
from pyllama_turbo.context import Context  # noqa: E402

BENCH = ROOT / "native" / "build" / "cpu" / "tools" / "llama-bench"


@dataclass
class Rates:
    """Samples of one way to run the model, in tokens per second."""

    name: str
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median of the samples, tokens per second."""
        return statistics.median(self.samples)

    def row(self, reference: Rates) -> str:
        """One line of the table: median, lowest and highest rate, ratio of the medians, and whether the ranges meet."""
        low, high = min(self.samples), max(self.samples)
        within = low <= max(reference.samples) and high >= min(reference.samples)
        verdict = "reference" if self is reference else "within the spread" if within else "OUTSIDE the spread"
        ratio = self.median / reference.median
        return f"{self.name:34s} {self.median:9.2f} {low:9.2f} {high:9.2f} {ratio:7.3f}  {verdict}"


def llama_bench(arguments: argparse.Namespace, n_prompt: int, n_gen: int) -> float:
    """One sample of llama-bench, with a warm-up of its own."""
    command = [str(arguments.llama_bench), "-m", str(arguments.model), "-p", str(n_prompt), "-n", str(n_gen)]
    command += ["-r", "1", "-o", "json", "-t", str(arguments.threads), "-fa", "1", "-ngl", "0"]
    command += ["-ctk", arguments.kv, "-ctv", arguments.kv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"llama-bench failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout)[0]["avg_ts"])


def decode_calls(ctx: Context, n: int) -> float:
    """The decode calls alone: tokens that nobody chose, as llama-bench runs them."""
    from time import perf_counter

    tokens = random_tokens(ctx.model.facts.n_vocab, n, seed=1)
    ctx.seqs.clear()
    start = perf_counter()
    for position, token in enumerate(tokens):
        ctx.decode_one(token, position)
        _ = ctx.logits
    return n / (perf_counter() - start)


def generate(ctx: Context, n: int) -> float:
    """The whole loop: choosing, text, events."""
    ctx.seqs.clear()
    run = ctx.generate([ctx.model.tokenizer.facts.bos or 1], temperature=0, max_tokens=n + 1, ignore_eos=True)
    for _ in run:
        pass
    assert run.last is not None
    return run.last.decode_tok_s


def prompt(ctx: Context, n: int) -> float:
    """A prompt of n tokens in one go."""
    from time import perf_counter

    tokens = random_tokens(ctx.model.facts.n_vocab, n, seed=2)
    ctx.seqs.clear()
    start = perf_counter()
    ctx.decode(tokens)
    _ = ctx.logits
    return n / (perf_counter() - start)


def main() -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Token rates beside llama-bench, in turns.")
    parser.add_argument("model", type=Path)
    parser.add_argument("-n", type=int, default=64, help="tokens to generate (default 64)")
    parser.add_argument("-p", type=int, default=256, help="tokens of the prompt; 0 = leave it out (default 256)")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=default_threads())
    parser.add_argument("--kv", default="f16", help="KV type of all (default f16)")
    parser.add_argument("--llama-bench", type=Path, default=BENCH)
    arguments = parser.parse_args()
    if not arguments.llama_bench.is_file():
        raise SystemExit(f"{arguments.llama_bench} is not there: build it as the first lines of this script say")
    tg = [Rates(f"llama-bench tg{arguments.n}"), Rates("decode calls from Python"), Rates("whole token loop")]
    pp = [Rates(f"llama-bench pp{arguments.p}"), Rates("decode from Python")] if arguments.p else []
    n_ctx = max(arguments.n + 2, arguments.p)
    with Model.open(arguments.model, n_gpu_layers=0) as model:
        options = {"n_threads": arguments.threads, "flash_attn": "on", "kv": arguments.kv, "k_center": "off"}
        with model.context(n_ctx, **options) as ctx:
            decode_calls(ctx, 8)  # warm-up, as llama-bench does
            for _ in range(arguments.rounds):
                tg[0].samples.append(llama_bench(arguments, 0, arguments.n))
                tg[1].samples.append(decode_calls(ctx, arguments.n))
                tg[2].samples.append(generate(ctx, arguments.n))
                if pp:
                    pp[0].samples.append(llama_bench(arguments, arguments.p, 0))
                    pp[1].samples.append(prompt(ctx, arguments.p))
    how = f"{arguments.threads} threads, {arguments.kv} KV, {arguments.rounds} rounds in turns"
    print(f"{arguments.model.name}, {how}; tok/s")
    print(f"{'':34s} {'median':>9s} {'least':>9s} {'most':>9s} {'ratio':>7s}")
    for rates in (*tg, *pp):
        print(rates.row(tg[0] if rates in tg else pp[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
