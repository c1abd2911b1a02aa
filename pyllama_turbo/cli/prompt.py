"""Where a command's text comes from: -p, -f, or standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def prompt_options(function: _F) -> _F:
    """Adds -p and -f."""
    function = click.option(
        "-f", "--file", metavar="FILE", type=click.Path(), help="Read the text from FILE; - is standard input."
    )(function)
    return click.option("-p", "--prompt", metavar="TEXT", help="The text; - or nothing reads standard input.")(function)


def read_text(path: str) -> str:
    """A text file.

    Raises:
        click.FileError: it cannot be read, or is not UTF-8.
    """
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.FileError(path, getattr(error, "strerror", None) or "not UTF-8 text") from None


def without_last_newline(text: str) -> str:
    """A text without the newline that an editor or `echo` puts at its end, as llama.cpp's tools read prompts."""
    return text[:-1] if text.endswith("\n") else text


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPED = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)


def unescaped(text: str) -> str:
    """A text with its escapes read, as llama.cpp's --escape does; what is no escape stays as it is."""

    def read(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 3 else _ESCAPES.get(code, match[0])

    return _ESCAPED.sub(read, text)


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The text.

    Raises:
        click.UsageError: both ways at once, none and stdin is a terminal, or an empty text.
        click.FileError: the file cannot be read.
    """
    if prompt is not None and file is not None:
        raise click.UsageError("give the text with -p or with -f, not with both")
    if file is not None and file != "-":
        text = without_last_newline(read_text(file))
    elif prompt is not None and prompt != "-":
        text = prompt
    elif sys.stdin.isatty() and prompt is None and file is None:
        raise click.UsageError("no text: give it with -p, -f or on standard input")
    else:
        text = without_last_newline(sys.stdin.read())
    if not text:
        raise click.UsageError("the text is empty")
    return text
