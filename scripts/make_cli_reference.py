#!/usr/bin/env python3
"""Write docs/cli.md from the commands themselves.

make_cli_reference.py            write the page
make_cli_reference.py --check    exit with 1 if the page is not what would be written
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from generated_pages import settle  # noqa: E402

from pyllama_turbo.cli.flags import GroupedOption  # noqa: E402
from pyllama_turbo.cli.group import cli  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"
HEAD = """# Command line

Made by `scripts/make_cli_reference.py` from the commands; do not edit.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 an error, 2 wrong usage, 130 interrupted, 141 the
reader of stdout went away. `-v` before the command shows the native library's log lines.
"""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _environment(param: click.Option, command: str) -> str:
    """The variable that sets an option: its own, or the one click makes of the command's name."""
    if param.envvar is not None or not param.allow_from_autoenv:
        return f"`{param.envvar}`" if isinstance(param.envvar, str) else ""
    path = command.removeprefix("pyllama-turbo ").replace("-", "_").replace(" ", "_")
    return f"`PYLLAMA_TURBO_{path.upper()}_{str(param.name).upper()}`"


def _rows(name: str, command: click.Command) -> Iterator[tuple[str, str, str, str]]:
    """Heading, flags, environment variable and meaning of every parameter."""
    for param in command.params:
        if isinstance(param, click.Argument):
            yield "Arguments", f"`{str(param.name).upper()}`", "", ""
        elif isinstance(param, click.Option) and not param.hidden:
            flags = ", ".join(f"`{flag}`" for flag in (*param.opts, *param.secondary_opts))
            heading = param.heading if isinstance(param, GroupedOption) else "Options"
            yield heading, flags, _environment(param, name), _cell(param.help or "")


def _command(name: str, command: click.Command, depth: int) -> Iterator[str]:
    yield f"\n{'#' * depth} {name}\n"
    yield inspect.cleandoc(command.help or "")
    sections: dict[str, list[tuple[str, str, str]]] = {}
    for heading, *row in _rows(name, command):
        sections.setdefault(heading, []).append((row[0], row[1], row[2]))
    for heading, rows in sections.items():
        yield f"\n| {heading} | environment | meaning |\n|---|---|---|"
        yield from (f"| {flags} | {env} | {meaning} |" for flags, env, meaning in rows)
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for sub in command.list_commands(ctx):
            inner = command.get_command(ctx, sub)
            if inner is not None:
                yield from _command(f"{name} {sub}", inner, depth + 1)


def page() -> str:
    """The text of the page."""
    ctx = click.Context(cli)
    parts = [HEAD]
    for name in cli.list_commands(ctx):
        command = cli.get_command(ctx, name)
        if command is not None:
            parts += _command(f"pyllama-turbo {name}", command, 2)
    return "\n".join(parts) + "\n"


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring."""
    return settle({PAGE: page()}, "make_cli_reference.py", argv == ["--check"])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
