"""Runs the command line inside this process, on tiny generated models; compares its text with committed snapshots."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_result import Result, Run

from pyllama_turbo.cli import main

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from make_model import write_model  # noqa: E402

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of all tests here, so that the mean keys of a tiny model are measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """No variable of the caller decides anything, and the caller's cache is not used."""
    for name in list(os.environ):
        if name.startswith("PYLLAMA_TURBO_") and name != "PYLLAMA_TURBO_BACKEND":
            monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("PYLLAMA_TURBO_CACHE", str(cache))


class _Stdin(io.StringIO):
    """Standard input that may claim to be a terminal."""

    def __init__(self, text: str, terminal: bool) -> None:
        super().__init__(text)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("kv", "--json")` -> Result; stdin is a terminal unless `stdin` is given."""

    def _run(*args: object, stdin: str | None = None) -> Result:
        monkeypatch.setattr(sys, "stdin", _Stdin(stdin or "", terminal=stdin is None))
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return _run


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Tiny models by what is special about them."""
    folder = tmp_path_factory.mktemp("models")
    cases: dict[str, dict[str, object]] = {
        "hd128": {"head_dim": 128, "n_head": 4, "n_head_kv": 1},
        "hd64": {"head_dim": 64, "n_head": 4, "n_head_kv": 2},
        "hd80": {"head_dim": 80, "n_head": 2, "n_head_kv": 2},
        "swa": {"arch": "gemma3", "n_layer": 7, "n_swa": 128, "head_dim": 128},
        "moe": {"arch": "qwen3moe", "n_expert": 4, "head_dim": 128},
        "novocab": {"vocab": False},
    }
    yield {name: write_model(folder / f"{name}.gguf", **case) for name, case in cases.items()}  # type: ignore[arg-type]


@pytest.fixture
def snapshot() -> Callable[[str, str], None]:
    """Compare text with tests/cli/snapshots/NAME.txt; UPDATE_SNAPSHOTS=1 rewrites it."""

    def _compare(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        text = re.sub(r"/\S*/(?=\w+\.gguf)", "FOLDER/", text)
        if os.environ.get("UPDATE_SNAPSHOTS"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no snapshot {path.name}; make it with UPDATE_SNAPSHOTS=1 pytest tests/cli"
        assert text == path.read_text(encoding="utf-8")

    return _compare
