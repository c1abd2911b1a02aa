"""Pages that scripts write: brought up to date, or checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def settle(pages: Mapping[Path, str], script: str, check: bool) -> int:
    """Write the pages that are not what they must be; with `check` name them instead.

    Args:
        pages: what each page must be.
        script: the script that makes them, for the message.
        check: write nothing.

    Returns:
        The exit code: 1 if `check` found a page out of date.
    """
    stale = [page for page, text in pages.items() if not page.is_file() or page.read_text(encoding="utf-8") != text]
    for page in stale:
        if check:
            print(f"{page} is out of date: run scripts/{script}", file=sys.stderr)
        else:
            page.write_text(pages[page], encoding="utf-8")
    return 1 if check and stale else 0
