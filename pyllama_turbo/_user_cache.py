"""Where this package keeps files of its own: fetched models and measured mean keys."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """$PYLLAMA_TURBO_CACHE, else pyllama-turbo in the user's cache folder."""
    if own := os.environ.get("PYLLAMA_TURBO_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pyllama-turbo"
