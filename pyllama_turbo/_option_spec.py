"""How an option is described once and used everywhere: keyword, flag, environment variable, reference page.

A field made with `option` carries an `OptionSpec` in its metadata; `specs` lists them for click and for the docs,
`build` makes an options object from keywords, checking names, kinds and ranges.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import OptionError, UnknownOptionError

__all__ = ["OptionSpec", "build", "flag_value", "option", "parse_size", "specs", "suggest"]

ENV_PREFIX = "PYLLAMA_TURBO_"
_T = TypeVar("_T")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*$")


@dataclass(frozen=True)
class OptionSpec:
    """One option.

    Attributes:
        name: keyword in Python.
        default: value when it is not given.
        help: one sentence, with the unit.
        flags: command-line names, llama.cpp's first; empty for keywords that make no sense there.
        kind: "int", "size" (accepts 4k), "float", "bool", "str", "list" or "any".
        choices: allowed texts, or empty.
        low, high: inclusive range of numbers, or None.
        group: heading in the help.
        parse: turns a given value into the stored one, checking it.
    """

    name: str
    default: Any
    help: str
    flags: tuple[str, ...] = ()
    kind: str = "any"
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    group: str = ""
    parse: Callable[[Any], Any] | None = None

    @property
    def env(self) -> str:
        """Environment variable that sets the flag."""
        return ENV_PREFIX + self.name.upper()


def option(
    default: Any,
    *flags: str,
    help: str,
    kind: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    group: str = "",
    parse: Callable[[Any], Any] | None = None,
) -> Any:
    """A dataclass field that describes itself; see `OptionSpec` for the arguments."""
    spec = OptionSpec("", default, help, flags, kind, choices, low, high, group, parse)
    return dataclasses.field(default=default, metadata={"option": spec})


def specs(cls: type) -> tuple[OptionSpec, ...]:
    """The options of a dataclass, in order."""
    return tuple(
        dataclasses.replace(f.metadata["option"], name=f.name)
        for f in dataclasses.fields(cls)
        if "option" in f.metadata
    )


def parse_size(value: Any) -> int:
    """A count such as 4096, "4096", "4k" or "1.5M" (k = 1024, M = 1024 k) as int.

    Raises:
        ValueError: it is none of those, or not a whole number.
        TypeError: it is a truth value.
    """
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    if isinstance(value, int):
        return value
    match = _SIZE.match(str(value))
    if not match:
        raise ValueError(f"{value!r} is not a number such as 4096 or 4k")
    number = float(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]
    if number != int(number):
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _parse_float(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _parse_str(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{value!r} is not a text")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "int": _parse_int,
    "size": parse_size,
    "float": _parse_float,
    "bool": _parse_bool,
    "str": _parse_str,
}


def convert(spec: OptionSpec, value: Any) -> Any:
    """The stored form of a given value. None stands for the default where that is None or an empty list.

    Raises:
        OptionError: wrong kind, not one of the choices, or outside the range.
    """
    if value is None and spec.default in (None, ()):
        return spec.default
    try:
        parsed = (spec.parse or _PARSERS.get(spec.kind, lambda v: v))(value)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{spec.name}: {error}", asked=value) from None
    if spec.choices and parsed not in spec.choices:
        raise OptionError(
            f"{spec.name} is {parsed!r}", asked=value, limit=spec.choices, hint=f"one of {', '.join(spec.choices)}"
        )
    is_number = isinstance(parsed, (int, float)) and not isinstance(parsed, bool)
    if is_number and ((spec.low is not None and parsed < spec.low) or (spec.high is not None and parsed > spec.high)):
        allowed = f"{'' if spec.low is None else f'{spec.low:g}'} to {'' if spec.high is None else f'{spec.high:g}'}"
        raise OptionError(
            f"{spec.name} is {parsed}", asked=value, limit=(spec.low, spec.high), hint=f"allowed: {allowed}"
        )
    return parsed


def suggest(name: str, known: list[str]) -> str:
    """ "did you mean ...?" for a name that is not known, or an empty text."""
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""


def build(cls: type[_T], values: Mapping[str, Any], *, also: tuple[str, ...] = ()) -> _T:
    """An options object from keywords.

    Args:
        cls: a dataclass whose fields were made with `option`.
        values: keyword -> value.
        also: further names to think of in the suggestion.

    Raises:
        UnknownOptionError: a keyword that does not exist, with the closest names.
        OptionError: a value of the wrong kind or outside its range.
    """
    table = {spec.name: spec for spec in specs(cls)}
    for name in values:
        if name not in table:
            known = sorted({*table, *also})
            raise UnknownOptionError(
                f"unknown keyword {name!r}", asked=name, limit=tuple(known), hint=suggest(name, known) or "see help()"
            )
    return cls(**{name: convert(table[name], value) for name, value in values.items()})


def flag_value(spec: OptionSpec) -> str:
    """The default as the help shows it."""
    if spec.default is None or spec.default == "":
        return "-"
    if isinstance(spec.default, (tuple, list)):
        return ",".join(str(v) for v in spec.default) or "-"
    return str(spec.default).lower() if isinstance(spec.default, bool) else str(spec.default)
