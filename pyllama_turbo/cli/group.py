"""The top command: knows its subcommands by name and imports the one that is called."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import click

from .._version import __version__

# Heading -> command -> its line in the overview. Each command is the module of that name in this package; `--help`
# imports none of them.
SECTIONS = {
    "Generate": {
        "run": "Generate text from a prompt.",
        "chat": "Talk with a model in the terminal.",
        "tokenize": "Show the tokens of a text.",
    },
    "Models and memory": {
        "models": "List and fetch the small models known by name.",
        "info": "Show what a GGUF file holds and which KV types fit it.",
        "kv": "List the KV cache types; with a model, which of them fit.",
        "estimate": "Compute memory and the largest context before loading.",
        "calibrate": "Measure a model's mean keys, for its compressed caches.",
        "advise": "Recommend the cheapest KV pair that keeps the quality and fits.",
    },
    "Measure": {
        "bench": "Speed of prompts and generation, in llama-bench's rows.",
        "kld": "KL divergence, same-top and perplexity of KV pairs against f16.",
        "ppl": "Perplexity, chunk by chunk.",
        "needle": "Ask for a fact hidden in a long text, for each KV pair.",
        "identity": "Compare greedy continuations of two settings.",
        "profile": "Time of each phase and kernel of a decode step.",
        "levers": "What would make a decode step faster, the largest share first.",
        "report": "Draw the results of the commands above.",
    },
    "This installation": {
        "demo": "Show everything once on a small model.",
        "doctor": "Report what this machine and this build can do.",
    },
}
COMMANDS = {name: text for commands in SECTIONS.values() for name, text in commands.items()}

EPILOG = """\b
Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted, 141 output closed,
143 terminated.
Every option is also read from the environment. Those of models, contexts,
sampling and generation from PYLLAMA_TURBO_<NAME>, with the NAME that the help
shows (PYLLAMA_TURBO_N_CTX=8k), the others with the command's name before theirs
(PYLLAMA_TURBO_RUN_QUIET=1). docs/cli.md lists them.
Completion: eval "$(_PYLLAMA_TURBO_COMPLETE=bash_source pyllama-turbo)"
            (zsh_source and fish_source for the other shells)
"""


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "auto_envvar_prefix": "PYLLAMA_TURBO"}


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
        """Names of all commands, in the order of the help; nothing is imported."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, whose module is imported for it; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{cmd_name}", __package__)
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
        """Write the commands and what each does, in the sections of `SECTIONS`."""
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show the native library's log lines on stderr.")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Run GGUF language models with a compressed KV cache."""
    ctx.obj = {"verbose": verbose}
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(message)s")
