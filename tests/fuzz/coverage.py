"""Run one target under libFuzzer: `coverage.py TARGET [libFuzzer options and corpus folders]`, from scripts/fuzz.py.

The process must be started with atheris' sanitizer library preloaded and an instrumented build on its path; both kinds
of code, Python and native, then count edges in the same map.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["pyllama_turbo"], enable_loader_override=False):
    from targets import TARGETS, attempt


def main() -> None:
    """Give the process to libFuzzer."""
    target = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        attempt(target, data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
