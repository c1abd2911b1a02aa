#!/usr/bin/env python3
"""Compile our CUDA sources for every supported GPU generation, without linking; needs no GPU.

    check_cuda.py [ARCH ...]          default: 80 86 89 90 120

Without nvcc it says so and exits with 0: there is nothing to check. Any failing file makes it exit with 1.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from apply_patches import prepare
from fetch_upstream import NATIVE
from jobs import available_bytes, jobs

ARCHITECTURES = ("80", "86", "89", "90", "120")


def find_nvcc() -> str | None:
    """nvcc of $CUDA_HOME, of the PATH, or of the usual folder."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    candidates = [Path(home) / "bin" / "nvcc" for home in homes if home]
    found = [str(path) for path in candidates if path.is_file()]
    return found[0] if found else shutil.which("nvcc")


def cublas_headers(nvcc: str, build: Path) -> list[Path]:
    """Include folders for cublas_v2.h, which ggml's own header wants: none if the toolkit has it.

    Else a copy of the headers of the nvidia-cublas package, alone: its neighbours may be newer than nvcc.
    """
    toolkit = Path(nvcc).resolve().parent.parent
    if any((folder / "cublas_v2.h").is_file() for folder in (toolkit / "include", *toolkit.glob("targets/*/include"))):
        return []
    spec = importlib.util.find_spec("nvidia")
    homes = list(spec.submodule_search_locations or []) if spec is not None else []
    headers = [header for home in homes for header in Path(home).glob("cu1*/include/cublas*.h")]
    if not headers:
        raise SystemExit(
            "check-cuda: cublas_v2.h is neither in the CUDA toolkit nor in this Python; "
            "pip install --no-deps nvidia-cublas==13.1.0.3 brings it"
        )
    folder = build / "cublas"
    folder.mkdir(parents=True, exist_ok=True)
    for header in headers:
        shutil.copy(header, folder)
    return [folder]


def compile_command(nvcc: str, source: Path, folders: list[Path], architectures: list[str], out: Path) -> list[str]:
    """The nvcc command for one file: all architectures, warnings on, no device code linked."""
    command = [
        nvcc,
        "-std=c++17",
        "-O3",
        "-use_fast_math",
        "--extended-lambda",
        "--expt-relaxed-constexpr",
        "-c",
        str(source),
        "-o",
        str(out),
    ]
    if source.stem.endswith("_sm90a") and "90" in architectures:
        architectures = [*architectures, "90a"]  # what only that architecture has
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures]
    return command + [f"-I{folder}" for folder in folders]


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring."""
    nvcc = find_nvcc()
    if nvcc is None:
        print("check-cuda: nvcc was not found (PATH, CUDA_HOME, /usr/local/cuda): nothing was checked")
        return 0
    build = NATIVE / "build" / "check-cuda"
    tree = build / "llama.cpp"
    prepare(tree, "library", None, NATIVE / "patches", NATIVE / "upstream.toml")
    architectures = argv or list(ARCHITECTURES)
    folders = [NATIVE, tree / "ggml/include", tree / "ggml/src", tree / "ggml/src/ggml-cuda"]
    folders += cublas_headers(nvcc, build)
    sources = sorted((NATIVE / "turbo" / "cuda").glob("*.cu"))

    def check(source: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
        command = compile_command(nvcc, source, folders, architectures, build / f"{source.stem}.o")
        return source, subprocess.run(command, capture_output=True, text=True, check=False)

    failed = 0
    with ThreadPoolExecutor(jobs("cuda", len(os.sched_getaffinity(0)), available_bytes())) as pool:
        for source, done in pool.map(check, sources):
            failed += done.returncode != 0
            print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {source.name}", flush=True)
            if done.returncode != 0:
                print(done.stderr, file=sys.stderr)
    print(f"check-cuda: {len(sources) - failed} of {len(sources)} files compile for sm_{', sm_'.join(architectures)}")
    return 1 if failed or not sources else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
