"""Where a command's text comes from: -p, -f, or standard input."""

from __future__ import annotations

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


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The text.

    Raises:
        click.UsageError: both ways at once, none and stdin is a terminal, or an empty text.
        click.FileError: the file cannot be read.
    """
    if prompt is not None and file is not None:
        raise click.UsageError("give the text with -p or with -f, not with both")
    if file is not None and file != "-":
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.FileError(file, getattr(error, "strerror", None) or "not UTF-8 text") from None
    elif prompt is not None and prompt != "-":
        text = prompt
    elif sys.stdin.isatty() and prompt is None and file is None:
        raise click.UsageError("no text: give it with -p, -f or on standard input")
    else:
        text = sys.stdin.read()
    if not text:
        raise click.UsageError("the text is empty")
    return text
