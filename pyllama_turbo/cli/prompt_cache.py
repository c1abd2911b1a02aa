"""`--prompt-cache`: what was computed for a prompt, kept in a file for the next run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import UnsupportedError
from .flags import GroupedOption

if TYPE_CHECKING:
    from ..context import Context

_F = TypeVar("_F", bound=Callable[..., Any])


def cache_options(function: _F) -> _F:
    """Adds --prompt-cache, --prompt-cache-all and --prompt-cache-ro."""
    for names, text, more in (
        (("--prompt-cache-ro",), "Read that file and leave it as it is.", {"is_flag": True}),
        (("--prompt-cache-all",), "Keep what was generated in it too.", {"is_flag": True}),
        (
            ("--prompt-cache",),
            "Begin with what FILE holds of the prompt, and write it anew.",
            {"metavar": "FILE", "type": click.Path()},
        ),
    ):
        function = click.option(*names, cls=GroupedOption, heading="Generation", help=text, **more)(function)
    return function


@contextmanager
def kept_prompt(
    context: Context, file: str | None, *, everything: bool, read_only: bool
) -> Iterator[Callable[[int], None]]:
    """Load a saved prompt into a context; the block calls what it gets with the prompt's length to save it.

    Args:
        context: where the prompt will run.
        file: the file, which need not exist yet; None: nothing is kept.
        everything: keep the tokens behind the prompt as well.
        read_only: leave the file as it is.

    Raises:
        StateError: the file is damaged, or was saved for another model, KV type, format or build.
    """
    from .. import state

    if file is not None and Path(file).exists():
        state.load(context, file)

    def save(n_prompt: int) -> None:
        if file is None or read_only:
            return
        if not everything:
            with suppress(UnsupportedError):  # a cache that cannot be cut back is kept as it is
                context.seqs.remove(0, n_prompt)
        state.save(context, file)

    yield save
