"""`pyllama-turbo tokenize`: the tokens of a text."""

from __future__ import annotations

import click

from ..models import resolve
from .flags import GroupedCommand, json_option, model_option
from .output import print_json
from .prompt import prompt_options, read_prompt


@click.command("tokenize", cls=GroupedCommand)
@model_option
@prompt_options
@click.option("--ids", is_flag=True, help="Print the ids alone, on one line.")
@click.option("--no-bos", is_flag=True, help="Do not add the tokens that the model expects around a text.")
@click.option(
    "--special",
    "--parse-special/--no-parse-special",
    "special",
    help="Read texts such as <|im_end|> as the tokens they name.",
)
@click.option("--show-count", is_flag=True, help="Print the number of tokens behind them.")
@json_option
def command(
    model: str,
    prompt: str | None,
    file: str | None,
    ids: bool,
    no_bos: bool,
    special: bool,
    show_count: bool,
    as_json: bool,
) -> None:
    """Show the tokens of a text, one a line: id, then the piece.

    A piece that is no whole character is shown as bytes.
    """
    from ..model import Model

    text = read_prompt(prompt, file)
    with Model.open(resolve(model), vocab_only=True) as opened:
        tokens = opened.tokenizer.encode(text, add_special=not no_bos, parse_special=special)
        pieces = [opened.tokenizer.piece(token, special=True) for token in tokens]
    if as_json:
        print_json(
            [
                {"id": t, "piece": p.decode("utf-8", "replace"), "hex": p.hex()}
                for t, p in zip(tokens, pieces, strict=True)
            ]
        )
    elif ids:
        click.echo(" ".join(map(str, tokens)))
    else:
        for token, piece in zip(tokens, pieces, strict=True):
            click.echo(f"{token:7d}  {_shown(piece)}")
    if show_count and not as_json:
        click.echo(f"{len(tokens)} tokens")


def _shown(piece: bytes) -> str:
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)
