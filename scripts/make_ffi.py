#!/usr/bin/env python3
"""Generate the C source of the cffi module (API mode, abi3) from the curated declarations in native/cdef."""

from __future__ import annotations

import argparse
from pathlib import Path

from cffi import FFI


def main() -> None:
    """Command line entry: write the generated C file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--prelude", type=Path, required=True, help="C text in front of the generated code (the includes)"
    )
    parser.add_argument("cdef", type=Path, nargs="+")
    args = parser.parse_args()
    ffi = FFI()
    for header in sorted(args.cdef):
        ffi.cdef(header.read_text(encoding="utf-8"))
    ffi.set_source("pyllama_turbo._ffi", args.prelude.read_text(encoding="utf-8"))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(args.out))


if __name__ == "__main__":
    main()
