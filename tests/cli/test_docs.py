"""Every command line and every block of Python in the task pages works as it is written.

A page's blocks run one after the other in a folder that holds `model.gguf`; later ones may use earlier ones' files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("run", "chat", "kv-types", "long-context", "embed")
EXAMPLES = (
    "ask_a_document",
    "chat",
    "side_by_side",
    "structured",
)  # the others take more than a model: tests/native runs them
TIMEOUT_S = 120


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of every block."""
    return re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)


def program_folder(folder: Path) -> Path:
    """A folder with the command `pyllama-turbo` of this source tree."""
    script = folder / "pyllama-turbo"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pyllama_turbo "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, models: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    shutil.copy(models["hd128"], tmp_path / "model.gguf")
    path = f"{program_folder(tmp_path_factory.mktemp('bin'))}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYLLAMA_TURBO_N_THREADS": "1"}
    env["PYLLAMA_TURBO_MAX_TOKENS"] = "24"  # a random model never ends an answer by itself
    found = blocks(text)
    assert {language for language, _ in found} <= {"sh", "python"}
    for language, code in found:
        command = ["bash", "-euo", "pipefail", "-c"] if language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*command, code], cwd=tmp_path, env=env, input="hello", capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        assert done.stdout or ">" in code, code
        assert language == "sh" or done.stderr == ""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (*PAGES, "api", "cli"):
        assert f"docs/{page}.md" in readme


@pytest.mark.parametrize("example", [ROOT / "examples" / f"{name}.py" for name in EXAMPLES], ids=EXAMPLES)
def test_examples_run(example: Path, models: dict[str, Path]) -> None:
    done = subprocess.run(
        [sys.executable, str(example), str(models["hd128"])], input="hello\nand then?\n", capture_output=True,
        text=True, timeout=TIMEOUT_S, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_example_is_listed() -> None:
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+\.py)`", page, re.MULTILINE)) == {p.name for p in (ROOT / "examples").glob("*.py")}
