"""The top command: knows its subcommands by name and imports the one that is called."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import click

from .._version import __version__

# name -> module of this package and the line in the overview, so that `--help` imports none of them.
COMMANDS = {
    "run": ("run", "Generate text from a prompt."),
    "chat": ("chat", "Talk with a model in the terminal."),
    "tokenize": ("tokenize", "Show the tokens of a text."),
    "info": ("info", "Show what a GGUF file holds and which KV types fit it."),
    "kv": ("kv", "List the KV cache types; with a model, which of them fit."),
    "estimate": ("estimate", "Compute memory and the largest context before loading."),
    "models": ("models", "List and fetch the small models known by name."),
    "demo": ("demo", "Show everything once on a small model."),
    "doctor": ("doctor", "Report what this machine and this build can do."),
}

EPILOG = """\b
Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted, 141 output closed.
Options of models, contexts, sampling and generation are also read from
PYLLAMA_TURBO_<NAME>, with the NAME that the help shows: PYLLAMA_TURBO_N_CTX=8k.
Completion: eval "$(_PYLLAMA_TURBO_COMPLETE=bash_source pyllama-turbo)"
            (zsh_source and fish_source for the other shells)
"""


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class OutputClosed(Exception):
    """Nobody reads stdout any more."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, imported when they are needed."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, but a closed pipe reaches `main`: click would end the program with an exit code of its own."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise OutputClosed from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion for a mistyped name."""
        from ..options import suggest

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = suggest(args[0], list(COMMANDS))
            ctx.fail(f"No such command {args[0]!r}." + (f" ({near})" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show the native library's log lines on stderr.")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Run GGUF language models with a compressed KV cache."""
    ctx.obj = {"verbose": verbose}
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(message)s")
