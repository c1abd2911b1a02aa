"""Flags that say how a conversation is written for the model: system message, template, reasoning."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .prompt import read_text, without_last_newline

_F = TypeVar("_F", bound=Callable[..., Any])


def template_options(function: _F) -> _F:
    """Adds the flags."""
    for option in (
        click.option("--jinja", is_flag=True, help="Accepted: every template runs in llama.cpp's jinja engine."),
        click.option(
            "-rea",
            "--reasoning",
            type=click.Choice(["on", "off", "auto"]),
            default="auto",
            help="Let a reasoning model reason [default: auto, as the template says].",
        ),
        click.option("--chat-template-kwargs", metavar="JSON", help="Further variables of the template."),
        click.option("--chat-template-file", metavar="FILE", help="Jinja text of a template, from a file."),
        click.option("--chat-template", metavar="TEMPLATE", help="Template: jinja text, or a name such as chatml."),
        click.option("-sysf", "--system-prompt-file", metavar="FILE", help="System message from a file."),
        click.option("-sys", "--system-prompt", metavar="TEXT", help="System message."),
    ):
        function = option(function)
    return function


def read_template(values: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The system message, and the keywords of `Chat` that say how it is rendered; taken out of `values`.

    Raises:
        click.UsageError: the same thing said twice, or a text that is no JSON object.
        click.FileError: a file that cannot be read.
        UnsupportedError: a template name that is not known.
    """
    values.pop("jinja")
    system = _one_of(values, "system_prompt", "system_prompt_file")
    template = _one_of(values, "chat_template", "chat_template_file")
    keywords: dict[str, Any] = {}
    if template is not None:
        keywords["template"] = _template(template)
    if (text := values.pop("chat_template_kwargs")) is not None:
        keywords["template_kwargs"] = _json_object(text)
    if (reasoning := values.pop("reasoning")) != "auto":
        keywords["enable_thinking"] = reasoning == "on"
    return system, keywords


def _one_of(values: dict[str, Any], text: str, file: str) -> str | None:
    given, path = values.pop(text), values.pop(file)
    if given is not None and path is not None:
        raise click.UsageError(f"give --{text.replace('_', '-')} or --{file.replace('_', '-')}, not both")
    return without_last_newline(read_text(path)) if path is not None else given


def _template(text: str) -> str:
    """Jinja text as it is; anything without a brace is a name."""
    from ..compat.formats import template_of

    return text if "{" in text else template_of(text) or ""


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--chat-template-kwargs: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError("--chat-template-kwargs: write a JSON object")
    return value
