"""docs/api.md is what the docstrings say."""

from __future__ import annotations

import sys
from pathlib import Path

import pyllama_turbo

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import make_api_reference  # noqa: E402


def test_the_page_is_current() -> None:
    assert make_api_reference.main(["--check"]) == 0


def test_the_page_has_every_public_name() -> None:
    page = make_api_reference.page()
    for name in pyllama_turbo.__all__:
        assert f"## {name}" in page or f"## pyllama_turbo.{name}" in page or name == "__version__", name
    assert " at 0x" not in page  # no addresses, which differ from run to run
    assert "Llama.create_chat_completion(messages, functions=None" in page
    assert "| `n_gpu_layers` | auto |" in page
