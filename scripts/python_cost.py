#!/usr/bin/env python3
"""What Python adds: import time, and microseconds a token beyond the C calls that the token loop makes.

    python scripts/python_cost.py                   # the real library with a tiny random model, and the fake library
    python scripts/python_cost.py --model M.gguf    # also a real model

Import times are processor times. In the token loop every C call is timed; what lies between is Python's, summed for
each token. The median token is shown: where the system gives the processor away between two calls, that is one token.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests" / "unit")]

from pyllama_turbo import _native  # noqa: E402
from pyllama_turbo.context import Context  # noqa: E402
from pyllama_turbo.generate import complete  # noqa: E402
from pyllama_turbo.model import Model  # noqa: E402

IMPORTS = ("import pyllama_turbo", "from pyllama_turbo import Model, Context, Sampler")


class TimedLibrary:
    """A library that notes when each of its functions is entered and left."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.calls: list[tuple[str, float, float]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lib, name)
        if callable(found) and not name.startswith("turbo_py_"):  # those are pointers that C calls
            found = self._timed(name, found)
        setattr(self, name, found)
        return found

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        clock, calls = time.perf_counter, self.calls

        def call(*arguments: Any) -> Any:
            start = clock()
            result = function(*arguments)
            calls.append((name, start, clock()))
            return result

        return call

    def own_seconds(self) -> list[float]:
        """Time outside of the functions, from each call that runs and chooses a token to the next."""
        own: list[float] = []
        for (_, _, before), (name, start, _) in pairwise(self.calls):
            if name == "turbo_sampler_step":
                own.append(0.0)
            if own:
                own[-1] += start - before
        return own[1:]


@contextmanager
def timed_library(lib: Any, ffi: Any) -> Iterator[TimedLibrary]:
    """The package uses `lib` through a `TimedLibrary` inside the block."""
    before, timed = _native._binding, TimedLibrary(lib)
    _native.set_binding(_native.Binding(ffi, timed, "cpu"))
    try:
        yield timed
    finally:
        _native.set_binding(before)


def import_ms(statement: str, runs: int = 5) -> float:
    """Least time of an import in fresh processes, in milliseconds."""
    code = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    command = [sys.executable, "-c", code]
    times = [
        float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout) for _ in range(runs)
    ]
    return 1000 * min(times)


def loop_us(
    ctx: Context, timed: TimedLibrary, n: int, runs: int = 3, before: Callable[[], None] | None = None
) -> float:
    """Median microseconds that `complete` spends outside of C calls for a token, the least of several runs."""
    best = float("inf")
    for _ in range(runs):
        if before is not None:
            before()
        timed.calls.clear()
        complete(ctx, "hello", temperature=0, max_tokens=n, ignore_eos=True, reuse=False)
        best = min(best, median(timed.own_seconds()))
    return 1e6 * best


def fake_loop_us(n: int = 2000) -> float:
    """`loop_us` with the tests' library in Python."""
    from fake_native import FakeLib, fake_model, make_ffi

    ffi = make_ffi()
    fake = FakeLib(ffi)
    fake.n_ctx = n + 64

    def rewind() -> None:
        fake.script = [120] * n
        fake.calls.clear()

    with timed_library(fake, ffi) as timed:
        rewind()
        model = fake_model(_native.binding())
        return loop_us(model.context(n + 64, n_batch=512), timed, n, before=rewind)


def real_loop_us(path: Path, n: int = 1000, runs: int = 3) -> float:
    """`loop_us` with the real library and a model."""
    b = _native.binding()
    with timed_library(b.lib, b.ffi) as timed, Model.open(path) as model, model.context(n + 64) as ctx:
        return loop_us(ctx, timed, n, runs)


def main() -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Measure what Python adds.")
    parser.add_argument("--model", type=Path, help="a real model to measure the token loop with, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    from make_model import write_model

    results = {f"{statement} (ms)": import_ms(statement) for statement in IMPORTS}
    results["token loop, fake library (us a token)"] = fake_loop_us()
    with tempfile.TemporaryDirectory() as folder:
        tiny = write_model(Path(folder) / "tiny.gguf")
        results["token loop, tiny model (us a token)"] = real_loop_us(tiny)
    if arguments.model:
        results[f"token loop, {arguments.model.stem} (us a token)"] = real_loop_us(arguments.model, 64, 3)
    if arguments.json:
        print(json.dumps(results))
    else:
        for name, value in results.items():
            print(f"{name:60s} {value:8.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
