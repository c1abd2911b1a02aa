#!/usr/bin/env python3
"""Coverage-guided fuzzing of everything that reads what strangers wrote: `make fuzz SECONDS=60`.

    fuzz.py [TARGET ...] [--seconds N] [--record FILE] [--keep]

Each target of tests/fuzz/targets.py runs N seconds in a process of its own, one after the other, under libFuzzer
(through atheris): Python code and the instrumented parsers of scripts/build_fuzz.py count edges together,
AddressSanitizer watches the native part, one allocation may have 512 MiB, the process 2 GiB, one input 20 seconds. A
finding is kept as a file and ends that target; the exit status says whether there was one. --record writes executions
and edges as JSON; --keep reduces what was found to the inputs that reach new edges and adds them to the corpus in the
repository.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import build_fuzz

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "tests" / "fuzz"
TARGETS = ("gguf", "model", "state", "grammar", "schema", "template", "answer", "tokenizer")
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-malloc_limit_mb=512")
CORPUS_BYTES, CORPUS_FILES = 24 << 10, 64  # committed a target, at most
SANITIZER = "detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1:handle_abort=1"


def preload() -> str:
    """The sanitizer and libFuzzer as one library, which atheris brings."""
    code = "import atheris, pathlib; print(pathlib.Path(atheris.__file__).parent.parent / 'asan_with_fuzzer.so')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"fuzz: {sys.executable} cannot import atheris; `make fuzz` installs it (CPython 3.11 and later)"
        )
    return done.stdout.strip()


def environment(library: Path) -> dict[str, str]:
    """Of a fuzzing process: the instrumented build, one thread, and the sanitizer's choices."""
    paths = [str(ROOT), str(ROOT / "native" / "tests" / "site"), str(FUZZ), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "LD_PRELOAD": preload(),
        "ASAN_OPTIONS": SANITIZER,
        "TURBO_TEST_LIBRARY": str(library),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYLLAMA_TURBO_BACKEND": "cpu",
        "OMP_NUM_THREADS": "1",
    }


def figures(log: str) -> dict[str, int]:
    """Executions, edges and peak memory from libFuzzer's output."""
    edges = re.findall(r"\bcov: (\d+) ft: (\d+)", log)

    def stat(name: str) -> int:
        found = re.search(rf"^stat::{name}:\s*(\d+)", log, re.MULTILINE)
        return int(found[1]) if found else 0

    return {
        "executions": stat("number_of_executed_units"),
        "edges": int(edges[-1][0]) if edges else 0,
        "features": int(edges[-1][1]) if edges else 0,
        "peak_rss_mib": stat("peak_rss_mb"),
    }


def seed(name: str, folder: Path, env: dict[str, str]) -> None:
    """Write the target's own seeds and the words to mutate by."""
    code = (
        "import pathlib, sys, targets\n"
        "target, out = targets.TARGETS[sys.argv[1]], pathlib.Path(sys.argv[2])\n"
        "[(out / f'seed{i}').write_bytes(s) for i, s in enumerate(target.seeds())]\n"
        "quote = lambda w: ''.join(f'\\\\x{b:02x}' for b in w.encode())\n"
        "out.with_suffix('.dict').write_text(''.join(f'\"{quote(w)}\"\\n' for w in target.words))\n"
        "targets.clean_up()\n"
        "print(target.max_bytes)\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", code, name, str(folder)], env=env, capture_output=True, text=True, check=True
    )
    (folder.with_suffix(".length")).write_text(done.stdout.strip())


def libfuzzer(name: str, options: list[str], env: dict[str, str], cwd: Path) -> tuple[int, str]:
    """Run a target with libFuzzer's options; its status and output."""
    command = [sys.executable, str(FUZZ / "coverage.py"), name, *options]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout + done.stderr


def run(name: str, seconds: int, work: Path, env: dict[str, str]) -> tuple[dict[str, int], bool]:
    """Fuzz one target; its figures, and whether it ended without a finding."""
    folder = work / name
    seed(name, folder, env)
    committed = FUZZ / "corpus" / name
    options = [
        f"-max_total_time={seconds}",
        "-print_final_stats=1",
        "-seed=1",
        f"-artifact_prefix={work}/finding-{name}-",
    ]
    options += [*LIMITS, f"-max_len={folder.with_suffix('.length').read_text()}"]
    if (words := folder.with_suffix(".dict")).stat().st_size:
        options.append(f"-dict={words}")
    status, log = libfuzzer(name, [*options, str(folder), *([str(committed)] if committed.is_dir() else [])], env, work)
    folder.with_suffix(".log").write_text(log)
    return figures(log), status == 0


def keep(name: str, work: Path, env: dict[str, str]) -> None:
    """Renew the committed corpus: few inputs that together reach what was found, as many as fit."""
    committed, reduced = FUZZ / "corpus" / name, work / f"{name}-reduced"
    committed.mkdir(parents=True, exist_ok=True)
    reduced.mkdir(exist_ok=True)
    for old in reduced.iterdir():
        old.unlink()
    libfuzzer(name, ["-set_cover_merge=1", *LIMITS, str(reduced), str(committed), str(work / name)], env, work)
    left = CORPUS_BYTES
    for old in committed.iterdir():
        old.unlink()
    by_size = sorted(reduced.iterdir(), key=lambda p: (p.stat().st_size, p.name))
    for path in by_size[-CORPUS_FILES:]:  # of many, the longer ones: they reach more
        left -= path.stat().st_size
        if left >= 0:
            (committed / path.name[:12]).write_bytes(path.read_bytes())


def main() -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Fuzz with coverage.", epilog="Needs clang++ and atheris.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="a target")
    parser.add_argument("--record", type=Path, help="JSON file for the figures")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new edges to the corpus")
    args = parser.parse_args()
    unknown = set(args.targets) - set(TARGETS)
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    if build_fuzz.main([]) != 0:
        return 1
    work = build_fuzz.BUILD / "work"
    env = environment(build_fuzz.BUILD / "instrumented")
    rows = {}
    clean = True
    for name in args.targets or TARGETS:
        row, passed = run(name, args.seconds, work, env)
        clean &= passed
        rows[name] = {"seconds": args.seconds, **row, "findings": 0 if passed else 1}
        print(f"{name:10} {row['executions']:>10,} executions {row['edges']:>7,} edges", end="")
        print("" if passed else f"  FINDING: {work}/finding-{name}-*, {work}/{name}.log")
        if args.keep:
            keep(name, work, env)
    if args.record:
        args.record.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
