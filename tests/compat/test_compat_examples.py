"""Programs written for llama-cpp-python run unchanged but for the import.

Each file of `examples` is such a program; the test replaces the import and the path of the model, nothing else.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.py"))
# What a program must print: a pattern where a random model decides, the very text elsewhere.
OUTPUT = {
    "caching": r"True\nTrue\n",
    "cache_types": r"1024 llama\n1\n",
    "chat": r"assistant : (.|\n)*",
    "chat_loop": r"(you: assistant: (.|\n)*){2}5 messages\n",
    "completion": r"Q: Which planet is closest to the sun\? A: (.|\n)*\nused \d+ tokens, ended by (length|stop)\n",
    "embeddings": r"list embedding True\n2 1 True\nTrue\n",
    "function_calling": r"tool_calls function report_door\nbool\n",
    "grammar": r"\(\d\d\)\n\[\s*(true|false)\s*(,\s*(true|false)\s*)?\]\n",
    "infill": r"True\n",
    "json_mode": r"(red|blue)\n",
    "logprobs": r"('.*' [01]\.\d+ True True\n){4}True\n",
    "openai_objects": r"chat\.completion length\nchat\.completion\.chunk\n",
    "processors": r"( x){5} 5 stop\n",
    "streaming": r'\{\n  "id": "cmpl-(.|\n)*"finish_reason": "length"(.|\n)*\}\n',
    "tokens": r"True b'the sea and the land'\n(.|\n)*\nTrue True\n",
}


def test_there_is_more_than_a_dozen() -> None:
    assert {path.stem for path in EXAMPLES} == set(OUTPUT)
    assert len(EXAMPLES) > 12


def with_our_import(text: str) -> str:
    """`Llama` alone comes from the package, anything else from its compatibility module."""
    text = re.sub(r"^from llama_cpp import Llama$", "from pyllama_turbo import Llama", text, flags=re.MULTILINE)
    text = re.sub(r"^from llama_cpp import", "from pyllama_turbo.compat import", text, flags=re.MULTILINE)
    return re.sub(r"^import llama_cpp$", "import pyllama_turbo.compat as llama_cpp", text, flags=re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    example: Path, path: Path, openai: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = example.read_text(encoding="utf-8")
    code = with_our_import(text).replace('"./models/model.gguf"', repr(str(path)))
    assert "pyllama_turbo" in code
    assert "pyllama_turbo" not in text
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nand then?\n"))
    exec(compile(code, str(example), "exec"), {"__name__": "__main__"})
    out, err = capfd.readouterr()
    assert re.fullmatch(OUTPUT[example.stem], out), out
    assert err == ""
