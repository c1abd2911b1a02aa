"""How the native library was made, for doctor, bench rows and saved state."""

from __future__ import annotations

import json
from typing import Any

from . import _native

__all__ = ["build_info"]


def build_info() -> dict[str, Any]:
    """Facts of the loaded library: backend, upstream commit, digest of pin + patches + our sources, CUDA architectures
    and graphs, CPU features, KV types, format number and codebook hash.

    Raises:
        NativeLibraryError: no library can be loaded.
    """
    b = _native.binding()
    info: dict[str, Any] = json.loads(_native.text(b, b.lib.turbo_build_info()))
    info["library"] = str(b.path) if b.path else ""
    return info
