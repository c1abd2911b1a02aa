"""What the README shows works as it is written; only the model's name is replaced."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_result import Run

from pyllama_turbo import kv

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
Models = dict[str, Path]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


COMMANDS = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("example", blocks("python"))
def test_python_examples(example: str, models: Models) -> None:
    code = example.replace('"model.gguf"', repr(str(models["hd128"])))
    code = code.replace("max_tokens=512", "max_tokens=16")  # a random model never ends its turn
    typed = "hello\nand then?\n\n" if "input(" in code else None
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120, input=typed
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("line", [c for c in COMMANDS if c.startswith("pyllama-turbo") and "fetch" not in c])
def test_commands(run: Run, models: Models, line: str) -> None:
    args = [str(models["hd128"]) if word == "smollm2" else word for word in shlex.split(line)[1:]]
    if args[0] == "chat":
        args += ["-n", "8"]  # a random model never ends its turn
    result = run(*args, stdin="hello" if args[0] == "chat" else None)
    assert result.code == 0, result.err
    assert result.out


def test_what_is_not_offered_is_listed() -> None:
    """Every keyword, argument and name that is refused stands in the table, or belongs to a row of it."""
    from pyllama_turbo.compat import offered
    from pyllama_turbo.compat.formats import TEMPLATES

    (table,) = re.findall(r"\| not offered \| instead \|\n(.*?)\n\n", README, re.DOTALL)
    for name in (*offered.KEYWORDS, *offered.ARGUMENTS, "from_pretrained", "LlamaPromptLookupDecoding"):
        assert name in table, name
    for name in TEMPLATES:
        assert name in table, name


def test_make_verbs() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = [c.split()[1] for c in COMMANDS if c.startswith("make ")]
    assert verbs
    for verb in verbs:
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE)


def test_table_of_types_agrees_with_the_library() -> None:
    rows = re.findall(
        r"^\| (`turbo.*?) \| ([\d.]+) \(([\d.]+)\) \| 128 \(64\) \| (\d+) \((\d+)\) ", README, re.MULTILINE
    )
    assert len(rows) == 3
    for name, bits, bits_64, size, size_64 in rows:
        large, small = kv.find(name.strip("`")), kv.find(name.strip("`") + "_64")
        assert (large.bits, large.block_bytes) == (float(bits), int(size))
        assert (small.bits, small.block_bytes) == (float(bits_64), int(size_64))


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
