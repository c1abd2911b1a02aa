#!/usr/bin/env python3
"""Measure decoding on a model of real shape with random weights: tokens/s of each KV type as a ratio to f16.

    gpu_bench.py [--shape qwen3moe-30b-a3b] [--depths 0,32768,131072] [--kv f16,turbo3,...] [--out docs/results]

Speed does not depend on the values of the weights. The model (17 GB for the default shape) is written to --work and
removed afterwards unless --keep. Every depth is measured with all types taken in turns in one process; long caches are
filled with random blocks, not computed. Writes one JSON file with the GPU, driver, clocks and digest, and exits 1 if a
row failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPES = "f16,turbo3,turbo2,turbo4,turbo3_tcq,turbo2_tcq,turbo4_tcq,q8_0,q8_0/turbo3"


def gpu_facts() -> dict[str, str]:
    """Name, driver and clocks of the first GPU, as nvidia-smi gives them."""
    fields = ["name", "driver_version", "clocks.sm", "clocks.mem", "memory.total"]
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return dict(zip(fields, (v.strip() for v in answer.split(","))))


def bench(model: Path, depth: int, args: argparse.Namespace) -> dict[str, object]:
    """Rows of one depth; the command and its exit code beside them."""
    command = [
        sys.executable,
        "-m",
        "pyllama_turbo",
        "bench",
        "-m",
        str(model),
        "-ngl",
        "all",
        "-kv",
        args.kv,
        "-p",
        args.prompt,
    ]
    command += [
        "-n",
        str(args.n_gen),
        "-d",
        str(depth),
        "-r",
        str(args.repeats),
        "--fill",
        "synthetic" if depth else "auto",
    ]
    command += ["--k-center", args.k_center, "--json"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        rows = json.loads(done.stdout)
    except ValueError:
        rows = {"failed": done.stderr[-4000:]}
    return {
        "depth": depth,
        "exit": done.returncode,
        "seconds": time.monotonic() - start,
        "rows": rows,
        "command": command[1:],
    }


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3moe-30b-a3b")
    parser.add_argument("--model", type=Path, help="a GGUF file instead of a written one")
    parser.add_argument("--depths", default="0,32768,131072")
    parser.add_argument("--kv", default=TYPES)
    parser.add_argument("--prompt", default="0", help="prompt lengths to time as well, as 512")
    parser.add_argument("--n-gen", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--k-center", default="auto")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    model = args.model or args.work / f"{args.shape}.gguf"
    if not model.exists():
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "make_model.py"), str(model), "--shape", args.shape], check=True
        )
    result: dict[str, object] = {"gpu": gpu_facts(), "shape": args.shape, "runs": []}
    failed = False
    for depth in map(int, args.depths.split(",")):
        run = bench(model, depth, args)
        failed |= run["exit"] != 0
        result["runs"].append(run)  # type: ignore[attr-defined]
        args.out.mkdir(parents=True, exist_ok=True)
        target = args.out / f"gpu-{args.shape}.json"
        target.write_text(json.dumps(result, indent=1), encoding="utf-8")
        print(f"depth {depth}: exit {run['exit']}, {run['seconds']:.0f} s", file=sys.stderr)
    result["gpu_after"] = gpu_facts()
    target.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if not args.keep and args.model is None:
        model.unlink()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
