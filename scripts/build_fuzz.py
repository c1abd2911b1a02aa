#!/usr/bin/env python3
"""Build the library for coverage-guided fuzzing: what reads hostile input is compiled with clang, counted and checked.

    build_fuzz.py [BUILD]          default: native/build/fuzz

An ordinary build comes first (minutes without ccache, seconds with it). Then the files of `INSTRUMENTED` are compiled a
second time with AddressSanitizer and libFuzzer's edge counters and linked in front of the ordinary archives, so that a
crash has a stack and a new path through a parser is seen, while the tensor code runs at full speed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "native" / "build" / "fuzz"
FLAGS = ["-fsanitize=address,fuzzer-no-link", "-O1", "-gline-tables-only", "-fno-omit-frame-pointer", "-w"]

# By the end of a file's path. Upstream's model graphs and kernels are left out: they see checked sizes only.
INSTRUMENTED = (
    "native/shim/",
    "native/turbo/llama/",
    "ggml/src/gguf.cpp",
    "src/llama.cpp",
    "src/llama-arch.cpp",
    "src/llama-batch.cpp",
    "src/llama-context.cpp",
    "src/llama-grammar.cpp",
    "src/llama-hparams.cpp",
    "src/llama-io.cpp",
    "src/llama-kv-cache.cpp",
    "src/llama-model-loader.cpp",
    "src/llama-model.cpp",
    "src/llama-vocab.cpp",
    "src/unicode.cpp",
    "common/chat.cpp",
    "common/chat-auto-parser-generator.cpp",
    "common/chat-auto-parser-helpers.cpp",
    "common/chat-diff-analyzer.cpp",
    "common/chat-peg-parser.cpp",
    "common/jinja/",
    "common/json.cpp",
    "common/json-schema.cpp",
    "common/json-schema-to-grammar.cpp",
    "common/parsers/parsers.cpp",
    "common/peg-parser.cpp",
    "common/sampling.cpp",
    "common/trie.cpp",
    "common/unicode.cpp",
)


@dataclass(frozen=True)
class Compile:
    """One instrumented file: its source, its object, and the command that makes it."""

    source: Path
    target: Path
    command: list[str]


def is_instrumented(source: Path) -> bool:
    """Whether a source file is one that reads what strangers wrote."""
    text = source.as_posix()
    return any(f"/{part}" in text if part.endswith("/") else text.endswith(f"/{part}") for part in INSTRUMENTED)


def plan(commands: list[dict[str, str]], compilers: set[str], folder: Path, launcher: list[str]) -> list[Compile]:
    """The second compilation of every instrumented file, from the build's compile_commands.json."""
    planned = []
    for entry in commands:
        source = Path(entry["file"])
        if not is_instrumented(source):
            continue
        words = shlex.split(entry["command"])
        words = words[max(i for i, word in enumerate(words) if word in compilers) + 1 :]
        del words[words.index("-o") : words.index("-o") + 2]
        words = [word for word in words if word != "-fopenmp"]
        compiler = "clang" if source.suffix == ".c" else "clang++"
        target = folder / ("-".join(source.parts[-3:]) + ".o")
        planned.append(Compile(source, target, [*launcher, compiler, *words, *FLAGS, "-o", str(target)]))
    return planned


def configure(build: Path) -> None:
    """An ordinary CPU build with a list of its compile commands."""
    command = ["cmake", "-S", str(ROOT / "native"), "-B", str(build), "-G", "Ninja", "-DTURBO_BACKEND=cpu"]
    command += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DPython_EXECUTABLE={sys.executable}", "--log-level=ERROR"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(build), "--target", "_ffi"], check=True, stdout=subprocess.DEVNULL)


def compilers_of(build: Path) -> set[str]:
    """The compilers of a build, as its cache names them."""
    lines = (build / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
    return {line.partition("=")[2] for line in lines if line.startswith(("CMAKE_C_COMPILER:", "CMAKE_CXX_COMPILER:"))}


def archives(build: Path) -> list[Path]:
    """The build's static libraries."""
    return sorted((build / "upstream").rglob("*.a"))


def link(build: Path, objects: list[Path], folder: Path) -> Path:
    """The instrumented library: its objects stand in front, so those of the same name in the archives are not taken."""
    target = folder / "lib" / "cpu" / "libllama_turbo.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["clang++", "-shared", "-fsanitize=address", "-Wl,-soname,libllama_turbo.so", "-o", str(target)]
    command += [
        f"-Wl,--version-script={ROOT / 'native' / 'cmake' / 'exports.map'}",
        "-Wl,--unresolved-symbols=ignore-all",
    ]
    command += ["-Wl,--allow-multiple-definition"]  # where a template's instance makes the linker take both objects
    command += [*map(str, objects), "-Wl,--start-group", *map(str, archives(build)), "-Wl,--end-group"]
    subprocess.run([*command, "-l:libgomp.so.1", "-lm", "-lpthread", "-ldl"], check=True)
    return target


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring. Prints the folder to give to TURBO_TEST_LIBRARY."""
    build = Path(argv[0]) if argv else BUILD
    if not shutil.which("clang++"):
        print("build_fuzz: clang++ was not found. On Debian and Ubuntu: apt install clang", file=sys.stderr)
        return 1
    configure(build)
    folder = build / "instrumented"
    folder.mkdir(exist_ok=True)
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    launcher = ["ccache"] if shutil.which("ccache") else []
    planned = plan(commands, compilers_of(build), folder, launcher)
    newest = (build / "lib" / "cpu" / "libllama_turbo.so").stat().st_mtime
    stale = [item for item in planned if not item.target.is_file() or item.target.stat().st_mtime < newest]
    jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda item: subprocess.run(item.command, cwd=build, check=False).returncode, stale))
    if any(results):
        return 1
    link(build, [item.target for item in planned], folder)
    shutil.copy2(build / "_ffi.abi3.so", folder / "_ffi.abi3.so")
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
