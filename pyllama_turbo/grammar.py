"""Structured output: a JSON schema as a GBNF grammar, by upstream's engine."""

from __future__ import annotations

from typing import Any

from . import _native

__all__ = ["from_schema"]


def from_schema(schema: str | dict[str, Any]) -> str:
    """The GBNF grammar of a JSON schema, for the `grammar` keyword of `generate`.

    Raises:
        OptionError: the schema is no valid JSON, uses what the engine does not know, is nested more than 512 deep, or
            makes a grammar that is out of proportion.
    """
    b = _native.binding()
    text = _native.c_text(schema, "the schema") if isinstance(schema, str) else _native.c_json(schema, "the schema")
    out = b.ffi.new("char **")
    _native.check(b, b.lib.turbo_schema_to_grammar(text, out), asked=schema)
    return _native.take_text(b, out[0])
