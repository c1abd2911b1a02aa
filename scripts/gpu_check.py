#!/usr/bin/env python3
"""Build and run the CUDA tests and benchmarks of native/turbo/cuda without llama.cpp.

    gpu_check.py test       op comparison against a float64 reference and the CPU codecs; every plan can be launched
    gpu_check.py bench      times of attention and of the cache write, a layer at a time in CUDA graphs
    gpu_check.py compile    compile the kernels for every architecture they support (no GPU needed)

Needs nvcc and, for all but `compile`, an NVIDIA GPU. Results go to --json with the GPU, driver and clocks they
came from.
Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
CUDA = NATIVE / "turbo" / "cuda"
TESTS = NATIVE / "tests" / "cuda"
CPU = NATIVE / "turbo" / "cpu"
KERNELS = (
    "attend", "attend_pairs", "attend_scalar", "attend_any_small", "attend_any_large", "attend_rows",
    "attend_wide_sm90a", "attend_batch_sm90a", "lift", "runs", "write",
)  # fmt: skip
ARCHITECTURES = ("80", "86", "89", "90", "120")
WRAPPED = ("cudaFuncSetAttribute", "cudaLaunchKernelExC")  # what test_plans replaces
CPU_FLAGS = {
    "_avx2": ["-mavx2", "-mfma"],
    "_avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vbmi", "-mfma"],
}
TABLES = (NATIVE / "turbo" / "codebooks.inc", NATIVE / "turbo" / "types.h")


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command with text output; the caller looks at the return code."""
    return subprocess.run(command, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def nvcc() -> str:
    """Path of the CUDA compiler."""
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(found).exists():
        sys.exit("gpu_check: nvcc was not found; install the CUDA toolkit or put nvcc on the PATH")
    return found


def query_gpu() -> dict[str, str]:
    """Name, driver, clocks and compute capability of the first GPU."""
    fields = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "compute_cap")
    answer = run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], capture_output=True)
    if answer.returncode != 0:
        sys.exit("gpu_check: no NVIDIA GPU answered (nvidia-smi failed)")
    values = [value.strip() for value in answer.stdout.splitlines()[0].split(",")]
    return dict(zip(fields, values, strict=True))


def digest() -> str:
    """Hash of the sources that were built."""
    total = hashlib.sha256()
    for path in sorted([*CUDA.iterdir(), *TESTS.iterdir(), *TABLES]):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def flags(architecture: str, name: str = "") -> list[str]:
    """Compiler flags as the library uses them; a file named *_sm90a is compiled for that in place of sm_90."""
    special = name.endswith("_sm90a") and architecture == "90"
    exact = "90a" if special else architecture
    target = [f"-gencode=arch=compute_{exact},code=sm_{exact}", *(["-DTURBO_SM90A"] if special else [])]
    return [*target, "-O3", "-std=c++17", "-use_fast_math", f"-I{NATIVE}"]


def compile_kernels(build: Path, architecture: str) -> list[Path]:
    """Compile the kernels for one architecture; returns the objects."""
    objects = []
    for name in KERNELS:
        target = build / f"{name}_{architecture}.o"
        sources = [*CUDA.glob("*.cuh"), *CUDA.glob("*.h"), CUDA / f"{name}.cu", *TABLES]
        if not target.exists() or any(path.stat().st_mtime > target.stat().st_mtime for path in sources):
            print(f"compiling {name}.cu for sm_{architecture}", flush=True)
            command = [nvcc(), *flags(architecture, name), "-c", str(CUDA / f"{name}.cu"), "-o", str(target)]
            if run(command).returncode != 0:
                sys.exit(f"gpu_check: {name}.cu does not compile for sm_{architecture}")
        objects.append(target)
    return objects


def compile_cpu(build: Path) -> list[Path]:
    """Compile the CPU codecs that test_codec compares with."""
    objects = []
    for source in sorted(CPU.glob("*.c")):
        extra = next((options for ending, options in CPU_FLAGS.items() if source.stem.endswith(ending)), [])
        target = build / f"cpu_{source.stem}.o"
        command = [os.environ.get("CC", "cc"), "-O2", *extra, f"-I{NATIVE}", "-c", str(source), "-o", str(target)]
        if run(command).returncode != 0:
            sys.exit(f"gpu_check: {source.name} does not compile")
        objects.append(target)
    return objects


def link(build: Path, name: str, architecture: str, objects: list[Path]) -> Path:
    """Compile and link one program of native/tests/cuda."""
    target = build / name
    wrapped = WRAPPED if name == "test_plans" else ()
    command = [nvcc(), *flags(architecture), str(TESTS / f"{name}.cu"), *map(str, objects), "-o", str(target)]
    command += [part for function in wrapped for part in ("-Xlinker", f"--wrap={function}")]
    if run(command).returncode != 0:
        sys.exit(f"gpu_check: {name} does not build")
    return target


def run_programs(build: Path, names: list[str], architecture: str) -> list[dict[str, object]]:
    """Build and run programs; one result each, its rows read back where it writes any."""
    kernels = compile_kernels(build, architecture)
    results: list[dict[str, object]] = []
    for name in names:
        objects = kernels + (compile_cpu(build) if name == "test_codec" else [])
        program = link(build, name, architecture, objects)
        rows = build / f"{name}.json"
        rows.unlink(missing_ok=True)
        command = [str(program), str(rows)] if name.startswith("bench") else [str(program)]
        done = run(command, stdout=subprocess.PIPE)
        print(done.stdout, end="", flush=True)
        entry: dict[str, object] = {"program": name, "ok": done.returncode == 0, "output": done.stdout.splitlines()}
        if rows.exists():
            entry["rows"] = json.loads(rows.read_text())
        results.append(entry)
    return results


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("test", "bench", "compile"))
    parser.add_argument("--build", type=Path, default=NATIVE / "build" / "gpu", help="where objects and programs go")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    if options.what == "compile":
        for architecture in ARCHITECTURES:
            compile_kernels(options.build, architecture)
        print(f"compiled for sm_{', sm_'.join(ARCHITECTURES)}; only the GPU at hand can be run")
        return 0
    gpu = query_gpu()
    tests = ["test_codec", "test_attend", "test_overlap", "test_repeat", "test_plans"]
    names = tests if options.what == "test" else ["bench_attend", "bench_write", "bench_step"]
    results = run_programs(options.build, names, gpu["compute_cap"].replace(".", ""))
    ok = all(bool(entry["ok"]) for entry in results)
    if options.json:
        report = {"gpu": gpu, "digest": digest(), "ok": ok, "results": results}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
