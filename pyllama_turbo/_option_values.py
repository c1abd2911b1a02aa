"""From what users write to what options store: one function for each kind of value that is no plain number or text."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ._option_spec import parse_size

_BIAS = re.compile(r"^\s*(\d+)\s*=?\s*([+-](?:\d+(?:\.\d*)?|\.\d+|inf))\s*$")


def gpu_layers(value: Any) -> int | str:
    """A number of layers, "auto" or "all"; -1 is all."""
    text = str(value).strip().lower()
    if text in ("auto", "all"):
        return text
    number = parse_size(value) if not text.startswith("-") else int(text)
    if number < -1:
        raise ValueError(f"{value!r} is neither a number of layers, 'auto' nor 'all'")
    return "all" if number == -1 else number


def flash_attn(value: Any) -> str:
    """ "on", "off" or "auto", also given as a truth value or llama.cpp's number."""
    known = {"1": "on", "true": "on", "0": "off", "false": "off", "-1": "auto", "none": "auto"}
    text = str(value).strip().lower()
    return known.get(text, text)


def floats(value: Any) -> tuple[float, ...]:
    """Numbers, or a text with commas between them."""
    items = value.split(",") if isinstance(value, str) else value
    return tuple(float(v) for v in items)


def texts(value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    items = (value,) if isinstance(value, str) else tuple(value)
    for item in items:
        if not isinstance(item, str) or not item:
            raise ValueError(f"{item!r} is not a text of at least one character")
    return items


def order(value: Any) -> tuple[str, ...]:
    """Names, or a text with semicolons or commas between them."""
    items = value.replace(",", ";").split(";") if isinstance(value, str) else tuple(value)
    return tuple(str(v).strip() for v in items if str(v).strip())


def lora(item: Any) -> tuple[str, float]:
    """An adapter with its scale: a path, "path:scale" or a pair."""
    if isinstance(item, (str, os.PathLike)):
        path, scale = os.fspath(item), 1.0
        head, colon, tail = path.rpartition(":")
        if colon and head and not os.path.exists(path):  # a Path or a name with a colon is taken as it is
            try:
                path, scale = head, float(tail)
            except ValueError:
                raise ValueError(f"{item!r} is neither a file nor path:scale") from None
    else:
        path, scale = os.fspath(item[0]), float(item[1])
    if not math.isfinite(scale):
        raise ValueError(f"the scale of {path!r} is {scale}, not a finite number")
    return str(path), scale


def loras(value: Any) -> tuple[tuple[str, float], ...]:
    """One file, a list of files and (file, scale) pairs, or a mapping from file to scale."""
    if isinstance(value, Mapping):
        return tuple(lora(pair) for pair in value.items())
    return tuple(lora(item) for item in ([value] if isinstance(value, (str, os.PathLike)) else value))


def scales(value: Any) -> tuple[float, ...]:
    """Finite numbers."""
    numbers = floats(value)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{numbers} are not all finite numbers")
    return numbers


def count(value: Any) -> int | None:
    """True asks for the chosen token only, False for nothing."""
    if isinstance(value, bool):
        return 0 if value else None
    number = parse_size(value)
    if number < 0:
        raise ValueError(f"{value!r} is not a number of tokens")
    return number


def schema(value: Any) -> str:
    """A JSON schema as text: text as it is, anything else written as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def pair(value: Any) -> tuple[int, float]:
    """One token and its bias."""
    if not isinstance(value, str):
        token, bias = value
        return int(token), float(bias)
    match = _BIAS.match(value)
    if not match:
        raise ValueError(f"{value!r} is no token id with a bias, such as 29905-2.5 or 29905-inf")
    return int(match[1]), float(match[2])


def bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Pairs of token and bias, from a mapping, pairs or texts such as "29905-2.5"."""
    pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
    return tuple(pair(item) for item in ([pairs] if isinstance(pairs, str) else pairs))
