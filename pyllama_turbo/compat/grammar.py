"""Grammars as objects, as llama-cpp-python has them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..grammar import from_schema

__all__ = ["LlamaGrammar"]


class LlamaGrammar:
    """A GBNF grammar for the `grammar` argument; it is compiled by llama.cpp when it is used.

    Attributes:
        gbnf: its text.
    """

    def __init__(self, gbnf: str) -> None:
        if not isinstance(gbnf, str) or not gbnf.strip():
            raise OptionError("the grammar is empty", asked=gbnf, hint="a grammar has at least a rule named root")
        self.gbnf = gbnf

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = False) -> LlamaGrammar:
        """From GBNF text. `verbose` is accepted and has no effect."""
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = False) -> LlamaGrammar:
        """From a file with GBNF text.

        Raises:
            OSError: it cannot be read.
            OptionError: it is empty.
        """
        return cls(Path(file).read_text(encoding="utf-8"))

    @classmethod
    def from_json_schema(cls, json_schema: str | Mapping[str, Any], verbose: bool = False) -> LlamaGrammar:
        """From a JSON schema, as text or as a dict.

        Raises:
            OptionError: no valid JSON, or a schema that llama.cpp's engine does not know.
        """
        return cls(from_schema(json_schema if isinstance(json_schema, str) else json.dumps(dict(json_schema))))

    def __repr__(self) -> str:
        return f"<LlamaGrammar of {len(self.gbnf.splitlines())} lines>"
