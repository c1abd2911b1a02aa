#!/usr/bin/env python3
"""Run the native tests with AddressSanitizer and UndefinedBehaviorSanitizer: `make sanitize`.

    sanitize.py [pytest arguments]

native/turbo, native/shim and native/tests are compiled with both sanitizers (native/cmake/Sanitize.cmake) into
native/build/sanitize, upstream's files without. Then run, each ending the script at its first report:
  1. test_codecs: every codec function on buffers of exactly the bytes it may touch, at odd addresses;
  2. test_fattn: CPU attention against float64, all pairs of types, on every path this CPU has; test_kv_mask: the mask
     of a lone sequence against its definition; test_product_groups: which nodes of a graph the CUDA backend joins;
  3. tests/kv with the codecs compiled for them under the sanitizers too;
  4. tests/native and tests/probes on the sanitized library, with tiny models.
Python itself keeps memory until it ends, so leaks are not reported. Reports go to files, since pytest holds a test's
output back and a process that ends in one loses it; they are printed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "native" / "build" / "sanitize"
REPORTS = BUILD / "reports"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g1 -Wno-error"
FATTN_CASES = "60"  # random shapes a path
NATIVE_TESTS = ("test_codecs", "test_fattn", "test_kv_mask", "test_product_groups")
OPTIONS = "detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1:quarantine_size_mb=32"


def build() -> None:
    """Configure and compile."""
    command = ["cmake", "-S", str(ROOT / "native"), "-B", str(BUILD), "-G", "Ninja", "-DTURBO_BACKEND=cpu"]
    command += ["-DTURBO_SANITIZE=ON", f"-DPython_EXECUTABLE={sys.executable}", "--log-level=ERROR"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    targets = [word for name in ("_ffi", *NATIVE_TESTS) for word in ("--target", name)]
    subprocess.run(["cmake", "--build", str(BUILD), *targets], check=True, stdout=subprocess.DEVNULL)


def runtime() -> str:
    """The sanitizers' libraries of the compiler that built the library, for LD_PRELOAD."""
    needed = subprocess.run(["ldd", str(BUILD / "tests" / "test_codecs")], capture_output=True, text=True, check=True)
    lines = [line.split() for line in needed.stdout.splitlines() if "libasan" in line or "libubsan" in line]
    return " ".join(words[2] for words in lines)


def environment() -> dict[str, str]:
    """Of a Python process on the sanitized library."""
    paths = [str(ROOT), str(ROOT / "native" / "tests" / "site"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "LD_PRELOAD": runtime(),
        "ASAN_OPTIONS": f"{OPTIONS}:log_path={REPORTS / 'report'}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={REPORTS / 'report'}",
        "TURBO_TEST_LIBRARY": str(BUILD),
        "TURBO_TEST_CFLAGS": FLAGS,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONMALLOC": "malloc",  # every Python buffer its own allocation, with guards around it
        "PYLLAMA_TURBO_BACKEND": "cpu",
    }


def show_reports() -> bool:
    """Print what the sanitizers wrote; whether there was anything."""
    found = sorted(REPORTS.glob("report*"))
    for path in found:
        print(f"sanitize: {path.name}\n{path.read_text(errors='replace')}", flush=True)
    return bool(found)


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring."""
    build()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    steps = [
        ([str(BUILD / "tests" / "test_codecs")], None),
        ([str(BUILD / "tests" / "test_fattn"), FATTN_CASES], None),
        ([str(BUILD / "tests" / "test_kv_mask")], None),
        ([str(BUILD / "tests" / "test_product_groups")], None),
        ([*pytest, "tests/kv", *argv], environment()),
        ([*pytest, "tests/native", "tests/probes", *argv], environment()),
    ]
    for command, env in steps:
        print("sanitize:", " ".join(Path(word).name for word in command), flush=True)
        status = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
        if show_reports() or status != 0:
            return status or 1
    print("sanitize: no report")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
