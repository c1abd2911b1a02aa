"""Structured output: a JSON schema as a GBNF grammar, by upstream's engine."""

from __future__ import annotations

import json
from typing import Any

from . import _native

__all__ = ["from_schema"]


def from_schema(schema: str | dict[str, Any]) -> str:
    """The GBNF grammar of a JSON schema, for the `grammar` keyword of `generate`.

    Raises:
        OptionError: the schema is no valid JSON, or uses what the engine does not know.
    """
    b = _native.binding()
    text = schema if isinstance(schema, str) else json.dumps(schema)
    out = b.ffi.new("char **")
    _native.check(b, b.lib.turbo_schema_to_grammar(text.encode(), out), asked=schema)
    return _native.take_text(b, out[0])
