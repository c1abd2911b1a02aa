#!/usr/bin/env python3
"""Write turbo_build.h: what `turbo_build_info()` reports about how the library was made.

The digest covers the pin, the patches and every file of native/turbo and native/shim; it names the build in bench
rows and saved states. The file is rewritten only when its text changes.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path


def source_digest(native: Path, tree_digest: str) -> str:
    """Hex digest of the prepared tree's digest and all our native sources."""
    digest = hashlib.sha256(tree_digest.encode())
    for folder in ("turbo", "shim"):
        for path in sorted(p for p in (native / folder).rglob("*") if p.is_file()):
            digest.update(path.relative_to(native).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--native", type=Path, required=True)
    for name in ("tree-digest", "commit", "backend", "cpu-features", "cuda-architectures"):
        parser.add_argument(f"--{name}", default="")
    args = parser.parse_args()
    values = {
        "TURBO_BUILD_DIGEST": source_digest(args.native, args.tree_digest),
        "TURBO_TREE_DIGEST": args.tree_digest,
        "TURBO_UPSTREAM_COMMIT": args.commit,
        "TURBO_BACKEND_NAME": args.backend,
        "TURBO_CPU_FEATURES": args.cpu_features,
        "TURBO_CUDA_ARCHITECTURES": args.cuda_architectures,
    }
    text = "#pragma once\n" + "".join(f'#define {name} "{value}"\n' for name, value in values.items())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if not args.out.is_file() or args.out.read_text(encoding="utf-8") != text:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
