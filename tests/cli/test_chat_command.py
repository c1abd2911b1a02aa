"""`chat`: one question from a pipe, and the conversation of a terminal with its commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_result import Run

from pyllama_turbo.chat import Chat
from pyllama_turbo.cli.chat import Session
from pyllama_turbo.model import Model

Models = dict[str, Path]
Say = Callable[..., str]


def test_a_question_from_a_pipe(run: Run, models: Models) -> None:
    args = ("chat", "-m", models["hd128"], "--kv", "turbo3", "--temp", "0", "-n", "8", "-c", "512")
    result = run(*args, stdin="hello\nthere\n")
    assert (result.code, result.err) == (0, "")
    assert result.out.strip()
    assert run(*args, stdin="hello\nthere\n").out == result.out
    assert run(*args, "--system-prompt", "be brief", stdin="hello\nthere\n").out != result.out


def test_how_a_conversation_is_written(run: Run, models: Models, tmp_path: Path) -> None:
    base = ("chat", "-m", models["hd128"], "--temp", "0", "-n", "6", "-c", "512")

    def answer(*args: object) -> str:
        result = run(*base, *args, stdin="hello")
        assert result.code == 0, result.err
        return result.out

    plain = answer()
    (tmp_path / "system.txt").write_text("be brief\n")
    assert answer("--system-prompt-file", tmp_path / "system.txt") == answer("-sys", "be brief") != plain
    (tmp_path / "own.jinja").write_text("{{ messages[-1].content }}: {{ tone }}")
    own = answer("--chat-template-file", tmp_path / "own.jinja", "--chat-template-kwargs", '{"tone": "calm"}')
    assert own == answer("--chat-template", "{{ messages[-1].content }}: calm") != plain
    assert answer("--chat-template", "chatml") != plain
    assert answer("-p", "hello") == plain


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-sys", "a", "-sysf", "b"), "not both"),
        (("--chat-template", "a", "--chat-template-file", "b"), "not both"),
        (("--chat-template", "chatmll"), "did you mean chatml"),
        (("--chat-template", "{% if %}"), "error: "),
        (("--chat-template-kwargs", "{"), "--chat-template-kwargs"),
        (("--chat-template-kwargs", "[1]"), "write a JSON object"),
        (("-sysf", "nothing.txt"), "nothing.txt"),
        (("--reasoning", "perhaps"), "perhaps"),
    ],
)
def test_wrong_usage(run: Run, models: Models, args: tuple[str, ...], message: str) -> None:
    result = run("chat", "-m", models["hd128"], *args, stdin="hello")
    assert result.code in (1, 2)
    assert result.out == ""
    assert message in result.err


def test_a_single_turn(session: Session, say: Say) -> None:
    lines = iter(["/help", "hello", "never read"])
    session.loop(lambda: next(lines), once=True)
    assert roles(session) == ["system", "user", "assistant"]
    assert next(lines) == "never read"


def test_nothing_to_ask(run: Run, models: Models) -> None:
    result = run("chat", "-m", models["hd128"], stdin=" \n")
    assert result.code == 2
    assert "no question" in result.err


@pytest.fixture
def session(models: Models) -> Iterator[Session]:
    with Model.open(models["hd128"]) as model, model.context(n_ctx=1024, kv="turbo3") as ctx:
        yield Session(ctx, Chat(ctx, "be brief", temperature=0, max_tokens=6))


@pytest.fixture
def say(session: Session, capsys: pytest.CaptureFixture[str]) -> Say:
    """Type lines; returns what went to stdout and stderr. An exception among the lines is raised by the reader."""

    def _say(*lines: str | type[BaseException]) -> str:
        rest = iter([*lines, EOFError])

        def read() -> str:
            line = next(rest)
            if isinstance(line, str):
                return line
            raise line

        session.loop(read)
        captured = capsys.readouterr()
        return captured.out + captured.err

    return _say


def roles(session: Session) -> list[str]:
    return [message["role"] for message in session.chat.messages]


def test_history_grows_and_its_start_stays_in_the_cache(session: Session, say: Say) -> None:
    say("hello", "and then?")
    assert roles(session) == ["system", "user", "assistant", "user", "assistant"]
    assert session.last is not None
    assert session.last.n_reused > 0
    assert "from the cache" in say("/stats")


def test_commands(session: Session, say: Say, tmp_path: Path) -> None:
    assert "/save FILE" in say("/help")
    first = say("hello")
    again = say("/again")
    assert again == first
    assert roles(session) == ["system", "user", "assistant"]
    file = tmp_path / "chat.json"
    say(f"/save {file}")
    assert json.loads(file.read_text()) == session.chat.messages
    say("/clear")
    assert session.chat.messages == [{"role": "system", "content": "be brief"}]
    say("/system talk like a pirate")
    assert session.chat.messages == [{"role": "system", "content": "talk like a pirate"}]
    say("/system")
    assert session.chat.messages == []


def test_errors_do_not_end_the_conversation(session: Session, say: Say) -> None:
    text = say("/nothing", "/stats", "/again", "/save", "/save /no/such/folder/x", "x " * 3000, "hello")
    assert text.count("error: ") == 6
    assert "hint: /help lists the commands" in text
    assert roles(session) == ["system", "user", "assistant"]


def test_exit_and_interrupts(session: Session, say: Say) -> None:
    text = say(KeyboardInterrupt, "", "/exit", "never read")
    assert "/exit leaves" in text
    assert roles(session) == ["system"]


def test_interrupt_stops_the_answer_and_keeps_it(session: Session, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Out:
        def write(self, text: str) -> None:
            shown.append(text)
            if len(shown) == 3:
                raise KeyboardInterrupt

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdout", Out())
    session.ask("hello")
    assert roles(session) == ["system", "user", "assistant"]
    assert session.last is not None
    assert session.last.n_generated == 3
    assert session.last.finish_reason is None


def test_lines_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyllama_turbo.cli.chat import read_message

    lines = iter(["one \\", "two\\", " three "])
    prompts: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or next(lines))
    assert read_message() == "one \ntwo\n three"
    assert prompts == ["> ", ". ", ". "]
