"""`pyllama-turbo chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OptionError, TurboError
from ..models import resolve
from ..options import ContextOptions, GenerationOptions, ModelOptions, SamplingOptions
from .familiar import familiar_flags, translate
from .flags import GroupedCommand, given, model_option, option_flags
from .output import colour, note, show_error
from .run import centering_line, kv_line, load_model, make_context
from .template import read_template, template_options

if TYPE_CHECKING:
    from ..chat import Chat
    from ..context import Context
    from ..generate import Event

HELP = """\
/help           this list
/clear          forget the conversation, keep the system message
/system TEXT    set the system message and start again (no TEXT: none)
/again          answer the last question once more
/save FILE      write the conversation as JSON
/stats          tokens, speed and KV cache of the last answer
/exit           leave (also Ctrl-D)
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer."""


@click.command("chat", cls=GroupedCommand)
@model_option
@click.option("-p", "--prompt", metavar="TEXT", help="The first question.")
@click.option("-st", "--single-turn", is_flag=True, help="Leave after the first answer.")
@template_options
@option_flags(GenerationOptions, SamplingOptions, ContextOptions, ModelOptions, leave_out=("echo", "special", "reuse"))
@familiar_flags
def command(model: str, prompt: str | None, single_turn: bool, **values: Any) -> None:
    """Talk with a model, through its own chat template.

    On a terminal: type, and read the answers; /help lists the commands. With standard input from a file or a pipe, all
    of it is one question, and the answer is all that is printed.
    """
    from ..chat import Chat

    values = translate(values)
    system, rendering = read_template(values)
    with (
        load_model(resolve(model), **given(values, ModelOptions)) as opened,
        make_context(opened, **given(values, ContextOptions)) as ctx,
    ):
        chat = Chat(ctx, system, **rendering, **given(values, GenerationOptions, SamplingOptions))
        session = Session(ctx, chat)
        terminal = sys.stdin.isatty()
        question = prompt if prompt is not None or terminal else sys.stdin.read().strip()
        if not terminal and not question:
            raise click.UsageError("no question on standard input")
        if terminal:
            note(f"{opened.facts.description}; {kv_line(ctx.kv)}; /help lists the commands")
        if question:
            session.ask(question)
        if terminal and not (single_turn and question):
            session.loop(read_message, once=single_turn)


def read_message() -> str:
    """One message from the terminal; raises EOFError at its end."""
    lines: list[str] = []
    while True:
        line = input(". " if lines else "> ")
        if not line.endswith("\\"):
            return "\n".join([*lines, line]).strip()
        lines.append(line[:-1])


class Session:
    """A conversation with its commands. `ctx` and `chat` are those it runs on."""

    def __init__(self, ctx: Context, chat: Chat) -> None:
        self.ctx = ctx
        self.chat = chat
        self.last: Event | None = None
        self._commands: dict[str, Callable[[str], object]] = {
            "help": lambda _: note(HELP),
            "clear": lambda _: self._restart(self._system()),
            "system": self._restart,
            "again": lambda _: self._again(),
            "save": self._save,
            "stats": lambda _: self._stats(),
        }

    def loop(self, read: Callable[[], str], *, once: bool = False) -> None:
        """Read messages and commands until the end of input or /exit. No error ends the conversation.

        Args:
            read: gives the next line.
            once: leave after the first answer.
        """
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # importing it gives input() a history and line editing
        while True:
            try:
                text = read()
            except EOFError:
                note("")
                return
            except KeyboardInterrupt:
                note("\n(Ctrl-D or /exit leaves)")
                continue
            if text in ("/exit", "/quit"):
                return
            try:
                self._handle(text)
            except (TurboError, OSError) as error:
                show_error(error)
            if once and self.last is not None:
                return

    def _handle(self, text: str) -> None:
        if not text.startswith("/"):
            if text:
                self.ask(text)
            return
        name, _, rest = text[1:].partition(" ")
        if name not in self._commands:
            raise OptionError(f"there is no command /{name}", hint="/help lists the commands")
        self._commands[name](rest.strip())

    def ask(self, text: str) -> None:
        """Ask and show the answer as it comes; Ctrl-C stops it and keeps what is there."""
        events = self.chat.send(text)
        try:
            for event in events:
                self.last = event
                sys.stdout.write(event.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            note(" (stopped)")
        finally:
            _close(events)
        sys.stdout.write("\n\n" if colour(sys.stdout) else "\n")
        sys.stdout.flush()

    def _system(self) -> str:
        first = self.chat.messages[:1]
        return str(first[0]["content"]) if first and first[0]["role"] == "system" else ""

    def _restart(self, system: str) -> None:
        self.chat.messages[:] = [{"role": "system", "content": system}] if system else []

    def _again(self) -> None:
        places = [i for i, message in enumerate(self.chat.messages) if message["role"] == "user"]
        if not places:
            raise OptionError("there is no question yet")
        question = str(self.chat.messages[places[-1]]["content"])
        del self.chat.messages[places[-1] :]
        self.ask(question)

    def _save(self, name: str) -> None:
        if not name:
            raise OptionError("no file name", hint="/save FILE")
        text = json.dumps(self.chat.messages, indent=2, ensure_ascii=False)
        Path(name).expanduser().write_text(text + "\n", encoding="utf-8")
        note(f"{len(self.chat.messages)} messages in {name}")

    def _stats(self) -> None:
        if self.last is None:
            raise OptionError("there is no answer yet")
        e = self.last
        note(f"prompt {e.n_prompt:,} tokens ({e.n_reused:,} from the cache), {e.prompt_tok_s:,.1f} tokens/s")
        note(f"answer {e.n_generated:,} tokens, {e.decode_tok_s:,.1f} tokens/s, seed {e.seed}")
        note(f"kv     {kv_line(self.ctx.kv)}; {centering_line(self.ctx.kv)}")


def _close(events: Iterator[Event]) -> None:
    """End a generator at once, so that a stopped answer joins the history now and not when it is collected."""
    close = getattr(events, "close", None)
    if close is not None:
        close()
