"""A user's script under `mypy --strict`: what is right passes with the types it should have, what is wrong is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIGHT = """
from pathlib import Path
from pyllama_turbo import Chat, Model, errors, state

def main(path: Path) -> int:
    try:
        with Model.open(path, n_gpu_layers="auto") as model, model.context(4096, kv="turbo3") as ctx:
            text: str = ctx.complete("Once upon a time", max_tokens=20)
            for event in ctx.generate("Once", max_tokens=5):
                reveal_type(event.text)
            reveal_type(ctx.logits)
            reveal_type(model.tokenizer.encode(text))
            reveal_type(ctx.kv.effective[0].device_k)
            reveal_type(state.get_bytes(ctx))
            reveal_type(ctx.seqs.range())
            for part in Chat(ctx).send("hello"):
                reveal_type(part)
        return 0
    except errors.MemoryLimitError as error:
        reveal_type(error.hint)
        return 1
"""
REVEALED = (
    "str", "numpy.ndarray[", "list[int]", "str", "bytes", "tuple[int, int]", "pyllama_turbo.", "str",
)  # fmt: skip
WRONG = {
    "model.close(3)": "call-arg",
    "model.contxt(4096)": "attr-defined",
    "model.context(4096).decode('text')": "arg-type",
    "len(model.facts.n_vocab)": "arg-type",
    "model.context(4096).seqs.range().first": "attr-defined",
    "model.context(4096).step(1, 2, 3)": "arg-type",
}


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> object:
    """`check(text)`: exit status and lines of mypy on a script outside of the project."""
    folder = tmp_path_factory.mktemp("typing")

    def run(text: str) -> tuple[int, list[str]]:
        script = folder / "script.py"
        script.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), script.name]
        environment = {**os.environ, "MYPYPATH": str(ROOT)}  # an editable install is found by Python, not by mypy
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr or done.stdout
        return done.returncode, done.stdout.splitlines()

    return run


def test_a_script_that_is_right(check) -> None:  # type: ignore[no-untyped-def]
    status, lines = check(RIGHT)
    assert status == 0, lines
    revealed = [m[1] for line in lines if (m := re.search(r'Revealed type is "(.*)"', line))]
    assert len(revealed) == len(REVEALED), lines
    for found, wanted in zip(revealed, REVEALED):
        assert wanted in found, (wanted, found)
    assert not any("Any" in found for found in revealed if "ndarray" not in found), revealed


def test_what_is_wrong_is_found(check) -> None:  # type: ignore[no-untyped-def]
    head = "from pyllama_turbo import Model\nwith Model.open('m.gguf') as model:\n"
    status, lines = check(head + "".join(f"    {statement}\n" for statement in WRONG))
    found = {int(m[1]): m[2] for line in lines if (m := re.match(r"script\.py:(\d+): error: .*\[([\w-]+)\]$", line))}
    assert status == 1 and found == dict(enumerate(WRONG.values(), start=3)), lines


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "pyllama_turbo" / "py.typed").is_file()
