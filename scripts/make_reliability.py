#!/usr/bin/env python3
"""Write the table of users' reports in docs/reliability.md, and its counts there and in the README, from the list.

    python scripts/make_reliability.py [--check]

The list is tests/probes/reports.toml. `--check` writes nothing and ends with 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from generated_pages import settle  # noqa: E402

LIST = ROOT / "tests" / "probes" / "reports.toml"
PAGE = ROOT / "docs" / "reliability.md"
README = ROOT / "README.md"
STATES = ("passed", "refused", "not applicable", "open")
_TABLE = re.compile(r"(<!-- reports -->\n).*?(<!-- /reports -->)", re.DOTALL)
_COUNTS = re.compile(r"(<!-- counts -->).*?(<!-- /counts -->)", re.DOTALL)


def reports() -> list[dict[str, Any]]:
    """The rows of the list: id, reports, symptom, state, and criterion, tests and why where they have them."""
    rows: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["report"]
    return rows


def counts(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows there are in each state, as a half sentence."""
    number = Counter(row["state"] for row in rows)
    kinds = ", ".join(f"{number[state]} {state}" for state in STATES)
    return f"{len(rows)} users' reports about comparable systems: {kinds}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The Markdown table, a row a report."""
    lines = ["| report | symptom | what must hold here | state |", "|---|---|---|---|"]
    for row in rows:
        state = f"{row['state']}: {row['why']}" if "why" in row else row["state"]
        tests = "".join(f"<br>`{name.split('::')[1]}`" for name in row.get("tests", ()))
        lines.append(f"| {row['reports']} | {row['symptom']} | {row.get('criterion', '')}{tests} | {state} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """What the pages must be."""
    rows = reports()
    page = _TABLE.sub(lambda m: m[1] + table(rows) + m[2], PAGE.read_text(encoding="utf-8"))
    page = _COUNTS.sub(lambda m: m[1] + counts(rows) + m[2], page)
    readme = _COUNTS.sub(lambda m: m[1] + counts(rows) + m[2], README.read_text(encoding="utf-8"))
    return {PAGE: page, README: readme}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Write the reports table of docs/reliability.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is out of date")
    check = parser.parse_args(argv).check
    return settle(pages(), "make_reliability.py", check)


if __name__ == "__main__":
    raise SystemExit(main())
