#!/usr/bin/env python3
"""Measure everything that docs/performance.md, docs/levers.md and docs/results say about a GPU, with one command.

    gpu_bench.py [--shape qwen3moe-30b-a3b,gemma4-26b-a4b] [--parts speed,lab] [--budget 180] [--out docs/results]

Models have the shapes of real ones and random weights: speed does not depend on their values. A model file (17 GB for
the largest) is written to --work for its measurements and removed afterwards unless --keep.

* speed: tokens/s of every KV type behind 0, 32,768, 131,072 (and 262,000) tokens, all types taken in turns in one
  process, as a ratio to f16; `pyllama-turbo bench` does it, into gpu-SHAPE.jsonl
* lab: phases, launches, switches, prompts and short batches, see gpu_lab.py, into lab-SHAPE.jsonl

The files hold GPU, driver, clocks, library digest, command lines and every sample. Exit code 1 if a row failed or there
was no time for it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the sibling modules, also when loaded by path
import gpu_lab  # noqa: E402
from gpu_common import ROOT, Budget, Results, gpu_facts, model_file  # noqa: E402

ALL = "f16,turbo3,turbo2,turbo4,turbo3_tcq,turbo2_tcq,turbo4_tcq,q8_0,q8_0/turbo3"
SOME = "f16,turbo3,turbo3_tcq,q8_0"


@dataclass(frozen=True)
class Speed:
    """One call of `pyllama-turbo bench`: KV pairs, depths, tokens of a sample."""

    kv: str
    depths: str
    n_gen: int = 64


PLAN: dict[str, tuple[Speed, ...]] = {
    "qwen3moe-30b-a3b": (Speed(ALL, "0,32768,131072"), Speed("f16,turbo3", "262000", 32)),
    "gemma4-26b-a4b": (Speed(SOME, "0,32768,131072"),),
    "llama3-8b": (Speed(SOME, "0,32768,131072"),),
}


def bench_command(model: Path, speed: Speed, out: Path, args: argparse.Namespace) -> list[str]:
    """The command line of one part of the table."""
    command = [sys.executable, "-m", "pyllama_turbo", "bench", "-m", str(model), "-ngl", args.gpu_layers]
    command += ["-kv", speed.kv, "-p", "0", "-n", str(args.n_gen or speed.n_gen), "-d", args.depths or speed.depths]
    command += ["-r", str(args.repeats), "--fill", "auto", "--k-center", args.k_center]
    return [*command, "--out", str(out)]


def run_speed(shape: str, model: Path, args: argparse.Namespace) -> list[str]:
    """The table of one shape; returns what failed."""
    results, budget = Results(args.out / f"gpu-{shape}.jsonl", fresh=True), Budget(args.budget)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    results.add(gpu_facts("before"))
    for speed in PLAN[shape]:
        what = f"{speed.kv} behind {args.depths or speed.depths}"
        budget.say(f"{shape}: {what}")
        command = bench_command(model, speed, results.path, args)
        try:
            done = subprocess.run(command, env=environment, stdout=sys.stderr, timeout=max(budget.left, 1), check=False)
            reason = "" if done.returncode == 0 else f"the process ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            reason = f"the budget of {budget.seconds:.0f} s was spent"
        if reason:
            results.add({"kind": "cell", "what": what, "status": "failed", "reason": reason})
    results.add({**gpu_facts("after"), "seconds": budget.spent})
    return results.failed


def main() -> int:
    """Command line entry."""
    parser = gpu_lab.make_parser(__doc__)
    parser.add_argument("--parts", default="speed,lab", help="what to measure [speed,lab]")
    parser.set_defaults(depths="", n_gen=0)
    args = parser.parse_args()
    args.asked = gpu_lab.command_line()
    failed: list[str] = []
    for shape in args.shape.split(","):
        model = args.model or model_file(shape, args.work, tiny=args.tiny)
        if "speed" in args.parts:
            failed += [f"{shape}: {text}" for text in run_speed(shape, model, args)]
        if "lab" in args.parts:
            failed += [f"{shape}: {text}" for text in gpu_lab.run_shape(shape, model, args)]
        if args.model is None and not args.keep:
            model.unlink()
    for text in failed:
        print(f"FAILED {text}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
