"""The command line: `pyllama-turbo COMMAND`, also `python -m pyllama_turbo COMMAND`.

One file per command. Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 an error, 2 wrong usage,
130 interrupted, 141 the reader of stdout went away, 143 terminated (SIGTERM).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPT = 130
EXIT_PIPE = 141
EXIT_TERMINATED = 143

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPT", "EXIT_OK", "EXIT_PIPE", "EXIT_TERMINATED", "EXIT_USAGE", "main"]


class _Terminated(BaseException):
    """SIGTERM came: everything is put away as after Ctrl-C, a bar on the terminal included."""


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; nothing but `SystemExit` from inside click's help escapes."""
    import click

    from ..errors import OptionError, TurboError
    from .group import OutputClosed, cli
    from .output import show_error, show_usage_error

    try:
        with _sigterm_raises():
            result = cli.main(
                args=None if args is None else list(args), prog_name="pyllama-turbo", standalone_mode=False
            )
            sys.stdout.flush()
        return result if isinstance(result, int) else EXIT_OK
    except (click.Abort, KeyboardInterrupt):
        click.echo(err=True)
        return EXIT_INTERRUPT
    except _Terminated:
        return EXIT_TERMINATED
    except click.ClickException as error:
        show_usage_error(error)
        return error.exit_code
    except (OutputClosed, BrokenPipeError):
        # Nobody reads any more. Python flushes stdout at exit once more: give it a place where that works.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except TurboError as error:
        show_error(error)
        return EXIT_USAGE if isinstance(error, OptionError) else EXIT_ERROR
    except OSError as error:
        show_error(error)
        return EXIT_ERROR
