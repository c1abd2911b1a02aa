"""The list of users' reports and the tests agree, and the pages are drawn from the list."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent / "scripts"))
import make_reliability  # noqa: E402

ROWS = make_reliability.reports()


def functions(path: Path) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_row_says_what_it_must(row: dict[str, str]) -> None:
    assert row["state"] in make_reliability.STATES
    assert row["reports"] and row["symptom"]
    if row["state"] in ("passed", "refused"):
        assert row["criterion"] and row["tests"]
    if row["state"] != "passed":
        assert row["why"]
    for name in row.get("tests", ()):
        path, function = name.split("::")
        assert function in functions(TESTS / path), f"there is no {name}"


def test_every_probe_is_in_the_list() -> None:
    listed = {name for row in ROWS for name in row.get("tests", ())}
    here = Path(__file__)
    for path in sorted(here.parent.glob("test_*.py")):
        for function in functions(path) if path != here else ():
            assert f"probes/{path.name}::{function}" in listed, f"{path.name}::{function} stands for no report"


def test_there_are_as_many_as_were_collected() -> None:
    assert len(ROWS) >= 120 and len({row["id"] for row in ROWS}) == len(ROWS)


def test_the_pages_are_current() -> None:
    assert make_reliability.main(["--check"]) == 0
