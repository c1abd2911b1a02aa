"""Integers that programs written for llama-cpp-python pass, and what they mean here.

They are llama.cpp's public enum values. Only KV types that upstream has can be meant by an integer: ids of this
project's own types differ between builds, those are chosen by name.
"""

from __future__ import annotations

from typing import Any

from .._option_spec import suggest

GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}
POOLING_TYPES = {"model": -1, "none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
ROPE_SCALINGS = {"model": -1, "none": 0, "linear": 1, "yarn": 2, "longrope": 3}
DEFAULT_SEED = 0xFFFFFFFF  # llama.cpp's "draw one"

# The names under which programs know the integers: llama_cpp.GGML_TYPE_Q8_0 and so on.
NAMED = {
    **{f"GGML_TYPE_{name.upper()}": number for name, number in GGML_TYPES.items()},
    **{f"LLAMA_SPLIT_MODE_{name.upper()}": number for name, number in SPLIT_MODES.items()},
    **{
        f"LLAMA_POOLING_TYPE_{'UNSPECIFIED' if number < 0 else name.upper()}": number
        for name, number in POOLING_TYPES.items()
    },
    **{
        f"LLAMA_ROPE_SCALING_TYPE_{'UNSPECIFIED' if number < 0 else name.upper()}": number
        for name, number in ROPE_SCALINGS.items()
    },
    "LLAMA_DEFAULT_SEED": DEFAULT_SEED,
}


def by_number(table: dict[str, int], value: Any) -> str:
    """The name of a value that is given by name or by llama.cpp's integer.

    Raises:
        ValueError: no such name or number; the message lists those there are.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"{value!r} is neither a name nor one of llama.cpp's integers")
    if isinstance(value, int):
        for name, number in table.items():
            if number == value:
                return name
        known = ", ".join(f"{number} ({name})" for name, number in table.items())
        raise ValueError(f"{value} means nothing here; known: {known}")
    if value not in table:
        near = suggest(value, list(table))
        raise ValueError(f"{value!r} is none of {', '.join(table)}" + (f"; {near}" if near else ""))
    return value


def kv_type(value: Any) -> str | None:
    """A KV cache type by name (checked later, against the library) or by upstream's integer.

    Raises:
        ValueError: an integer of no upstream type that a cache can have.
    """
    if value is None or isinstance(value, str):
        return value
    try:
        return by_number(GGML_TYPES, value)
    except ValueError as error:
        raise ValueError(f"{error}; compressed types go by name, as 'turbo3'") from None
