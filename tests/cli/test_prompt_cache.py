"""`run --prompt-cache`: made, used for what is shared, extended, left alone; never written over something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_result import Run

Models = dict[str, Path]
TEXT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture
def go(run: Run, models: Models, tmp_path: Path) -> Any:
    """`go(text, *flags)`: the JSON result of a run with the cache file."""

    def _go(text: str, *flags: object, kv: str = "turbo3") -> dict[str, Any]:
        base = ("run", "-m", models["hd128"], "--temp", "0", "-n", "8", "-c", "256", "--kv", kv, "--json")
        result = run(*base, "-p", text, "--prompt-cache", tmp_path / "p", *flags)
        assert result.code == 0, result.err
        facts: dict[str, Any] = json.loads(result.out)
        return facts

    return _go


def test_the_second_run_computes_one_token_and_says_the_same(go: Any, tmp_path: Path) -> None:
    first = go(TEXT)
    assert first["n_reused"] == 0 and first["prompt_cache"]["n_loaded"] == 0
    assert first["prompt_cache"]["n_bytes_written"] == (tmp_path / "p").stat().st_size
    second = go(TEXT)
    assert second["n_reused"] == second["n_prompt"] - 1 == second["prompt_cache"]["n_loaded"] - 1
    assert second["prompt_cache"]["n_bytes_written"] == 0  # nothing new to write
    assert second["text"] == first["text"]


def test_what_is_shared_is_reused_and_the_rest_is_saved(go: Any) -> None:
    go(TEXT)
    other = go(TEXT + " and runs away")
    assert 0 < other["n_reused"] < other["n_prompt"] and other["prompt_cache"]["n_bytes_written"] > 0
    assert go(TEXT + " and runs away")["n_reused"] == other["n_prompt"] - 1
    assert go("something else")["n_reused"] <= 1


def test_read_only_and_everything(go: Any, tmp_path: Path) -> None:
    go(TEXT)
    before = (tmp_path / "p").read_bytes()
    assert go(TEXT + " again", "--prompt-cache-ro")["n_reused"] > 5
    assert (tmp_path / "p").read_bytes() == before
    whole = go(TEXT, "--prompt-cache-all")
    assert whole["prompt_cache"]["n_bytes_written"] > len(before)
    longer = go(TEXT + whole["text"])
    assert longer["prompt_cache"]["n_loaded"] == whole["n_prompt"] + whole["n_generated"] - 1


def test_the_terminal_shows_it(run: Run, models: Models, tmp_path: Path) -> None:
    base = ("run", "-m", models["hd128"], "--temp", "0", "-n", "4", "-c", "256", "-p", TEXT)
    assert "bytes written to" in run(*base, "--prompt-cache", tmp_path / "p").err
    assert f"tokens from {tmp_path / 'p'}" in run(*base, "--prompt-cache", tmp_path / "p").err


def test_another_cache_and_another_file_are_refused_and_kept(run: Run, go: Any, models: Models, tmp_path: Path) -> None:
    go(TEXT)
    before = (tmp_path / "p").read_bytes()
    base = ("run", "-m", models["hd128"], "-n", "4", "-c", "256", "-p", TEXT)
    result = run(*base, "--kv", "turbo4", "--prompt-cache", tmp_path / "p")
    assert result.code == 1 and "turbo3" in result.err and "turbo4" in result.err
    assert (tmp_path / "p").read_bytes() == before
    (tmp_path / "letter.txt").write_text("dear")
    result = run(*base, "--prompt-cache", tmp_path / "letter.txt")
    assert result.code == 1 and "no saved state" in result.err
    assert (tmp_path / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    "flags", [("-ro",), ("-all",), ("", "x", "-all", "-ro")], ids=["read only", "everything", "both"]
)
def test_switches_that_make_no_sense(run: Run, models: Models, flags: tuple[str, ...]) -> None:
    switches = [flag if flag == "x" else f"--prompt-cache{flag}" for flag in flags]
    assert run("run", "-m", models["hd128"], "-p", "x", *switches).code == 2


def test_a_folder_that_is_not_there(run: Run, models: Models, tmp_path: Path) -> None:
    result = run(
        "run", "-m", models["hd128"], "-p", "x", "-c", "256", "-n", "2", "--prompt-cache", tmp_path / "no" / "p"
    )
    assert result.code == 1 and "No such file" in result.err and "Traceback" not in result.err
