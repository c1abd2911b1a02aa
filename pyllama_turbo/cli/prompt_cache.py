"""`--prompt-cache FILE`: the state of a prompt on disk, so that its beginning is not computed again next time.

llama.cpp's meaning: the file is made if it is not there, used for as much as the new prompt shares with it, and
written after the prompt is in the cache; `--prompt-cache-all` writes what was generated too, `--prompt-cache-ro` writes
nothing. A file that is something else, or was saved for another model or cache, is refused and never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .flags import GroupedOption

if TYPE_CHECKING:
    from ..context import Context
    from ..generate import Event

__all__ = ["PromptCache", "prompt_cache_options"]

_F = TypeVar("_F", bound=Callable[..., Any])
_HEADING = "Generation"


def prompt_cache_options(function: _F) -> _F:
    """Adds --prompt-cache, --prompt-cache-all and --prompt-cache-ro."""
    for name, text in (
        ("--prompt-cache-ro", "Use the prompt cache, but do not write it."),
        ("--prompt-cache-all", "Save what was generated in the prompt cache too."),
    ):
        function = click.option(name, cls=GroupedOption, heading=_HEADING, is_flag=True, help=text)(function)
    return click.option(
        "--prompt-cache", cls=GroupedOption, heading=_HEADING, metavar="FILE", type=click.Path(dir_okay=False),
        help="Keep the prompt's state in FILE: the part that a later prompt shares is not computed again.",
    )(function)  # fmt: skip


class PromptCache:
    """The file of one run.

    Args:
        path: the file, or None for no cache.
        everything: save what was generated too.
        read_only: never write.

    Attributes:
        n_loaded: tokens that came from the file.
        n_written: bytes written to it.

    Raises:
        click.UsageError: a switch without a file, or both switches.
    """

    def __init__(self, path: str | None, everything: bool, read_only: bool) -> None:
        if path is None and (everything or read_only):
            raise click.UsageError("--prompt-cache-all and --prompt-cache-ro need --prompt-cache FILE")
        if everything and read_only:
            raise click.UsageError("--prompt-cache-all writes and --prompt-cache-ro does not: give one of them")
        self.path = Path(path) if path else None
        self.n_loaded = 0
        self.n_written = 0
        self._everything = everything
        self._read_only = read_only

    def load(self, context: Context) -> None:
        """Put the saved state into the context, if there is a file. Raises StateError if it belongs to another one."""
        from .. import state

        if self.path is not None and self.path.exists():
            self.n_loaded = state.load(context, self.path)

    def prompt_done(self, context: Context, event: Event) -> None:
        """Write the state of the prompt, unless the file had all of it; called with the first event."""
        if not self._everything and event.n_prompt - event.n_reused > 1:
            self._save(context)

    def finished(self, context: Context) -> None:
        """Write the state at the end, if all of it is wanted."""
        if self._everything:
            self._save(context)

    def _save(self, context: Context) -> None:
        from .. import state

        if self.path is not None and not self._read_only:
            try:
                self.n_written = state.save(context, self.path)
            except OSError as error:
                raise click.FileError(str(self.path), error.strerror or str(error)) from None

    def line(self, event: Event) -> str:
        """What the file gave and got, in one line."""
        parts = [f"{event.n_reused:,} of {event.n_prompt:,} tokens from {self.path}" if self.n_loaded else "new"]
        if self.n_written:
            parts.append(f"{self.n_written:,} bytes written to {self.path}")
        return ", ".join(parts)

    def facts(self) -> dict[str, Any] | None:
        """For --json; None without a file."""
        if self.path is None:
            return None
        return {"file": self.path, "n_loaded": self.n_loaded, "n_bytes_written": self.n_written}
