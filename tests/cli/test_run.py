"""`run` and `demo`: text on stdout, the rest on stderr, exit codes, pipes, signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_result import Run

Models = dict[str, Path]
GREEDY = ("--temp", "0", "-n", "12", "-c", "256")


@pytest.mark.parametrize("name", ["hd128", "hd64", "swa", "moe"])
@pytest.mark.parametrize("kv_type", ["f16", "turbo3", "q8_0/turbo3"])
def test_text_on_stdout_and_facts_on_stderr(run: Run, models: Models, name: str, kv_type: str) -> None:
    result = run("run", "-m", models[name], "-p", "hello", "--kv", kv_type, *GREEDY)
    assert result.code == 0
    assert result.out.endswith("\n")
    assert re.search(r"^prompt +\d+ tokens, [\d.,]+ tokens/s$", result.err, re.MULTILINE)
    assert re.search(r"^generated +12 tokens, [\d.,]+ tokens/s, ended by length, seed \d+$", result.err, re.MULTILINE)
    assert re.search(rf"^kv +asked {kv_type}, stored ", result.err, re.MULTILINE)


def test_greedy_text_is_the_same_from_every_source(run: Run, models: Models, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("hello")
    base = ("run", "-m", models["hd128"], "-q", *GREEDY)
    by_flag = run(*base, "-p", "hello")
    assert by_flag.err == ""
    assert by_flag.out.strip()
    assert run(*base, "-f", file).out == by_flag.out
    assert run(*base, stdin="hello").out == by_flag.out
    assert run(*base, "-p", "-", stdin="hello").out == by_flag.out
    assert run(*base, "-f", "-", stdin="hello").out == by_flag.out


def test_json(run: Run, models: Models) -> None:
    args = ("run", "-m", models["hd64"], "-p", "hello", "--kv", "turbo3", *GREEDY)
    result = run(*args, "--json")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out)
    assert data["text"] + "\n" == run(*args, "-q").out
    assert (data["n_generated"], data["finish_reason"], data["interrupted"]) == (12, "length", False)
    assert data["kv"]["requested"] == ["turbo3", "turbo3"]
    assert {(layer["type_k"], layer["type_v"]) for layer in data["kv"]["layers"]} == {("turbo3_64", "turbo3_64")}
    assert data["kv"]["bits"] == 3.25
    assert data["kv"]["centering"]["requested"] == "auto"
    assert data["kv"]["bytes"] * 16 == data["kv"]["f16_bytes"] * 3.25


@pytest.mark.parametrize(("choice", "line"), [("auto", "keys centred"), ("off", "keys not centred: switched off")])
def test_what_is_done_about_the_mean_of_the_keys(run: Run, models: Models, choice: str, line: str) -> None:
    result = run("run", "-m", models["hd128"], "-p", "hello", "--kv", "turbo3", "--k-center", choice, *GREEDY)
    assert result.code == 0
    assert line in result.err


def test_seed_decides_the_text(run: Run, models: Models) -> None:
    args = ("run", "-m", models["hd128"], "-p", "hello", "-q", "-n", "16", "--temp", "1.5", "-c", "256")
    first = run(*args, "-s", "7").out
    assert run(*args, "--seed", "7").out == first
    assert run(*args, "-s", "8").out != first


def test_environment_sets_options_and_flags_win(run: Run, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_TURBO_MODEL", str(models["hd128"]))
    monkeypatch.setenv("PYLLAMA_TURBO_MAX_TOKENS", "3")
    monkeypatch.setenv("PYLLAMA_TURBO_KV", "turbo3")
    monkeypatch.setenv("PYLLAMA_TURBO_N_CTX", "1k")
    data = json.loads(run("run", "-p", "hello", "--json").out)
    assert (data["n_generated"], data["kv"]["requested"]) == (3, ["turbo3", "turbo3"])
    assert data["kv"]["layers"][0]["cells"] == 1024
    assert json.loads(run("run", "-p", "hello", "--json", "-n", "5").out)["n_generated"] == 5
    monkeypatch.setenv("PYLLAMA_TURBO_N_CTX", "many")
    assert run("run", "-p", "hello").code == 2


def test_stop_text_is_not_shown(run: Run, models: Models) -> None:
    args = ("run", "-m", models["hd128"], "-p", "hello", *GREEDY)
    whole = run(*args, "-q").out
    middle = whole[3:5]
    data = json.loads(run(*args, "--json", "--stop", middle, "-r", "never to be seen").out)
    assert data["text"] == whole[: whole.index(middle)]
    assert (data["finish_reason"], data["stop_text"]) == ("stop", middle)


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (("-p", "a", "-f", "b"), None, "not with both"),
        ((), None, "no text"),
        (("-p", ""), None, "the text is empty"),
        ((), "", "the text is empty"),
        (("-p", "x", "--kv", "turbo9"), None, "unknown KV cache type 'turbo9'"),
        (("-p", "x", "--kv", "turbo"), None, "did you mean"),
        (("-p", "x", "--kv", "turbo3", "-ctv", "f16"), None, "kv stands for type_k and type_v"),
        (("-p", "x", "--grammar", "root ::= ("), None, "error: "),
    ],
)
def test_wrong_usage(run: Run, models: Models, args: tuple[str, ...], stdin: str | None, message: str) -> None:
    result = run("run", "-m", models["hd128"], *args, stdin=stdin)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("hd80", ("--kv", "turbo3"), "80"),
        ("hd128", ("--kv", "turbo3", "-fa", "off"), "flash attention"),
        ("hd128", ("-c", "2000M"), "does not fit"),
        ("novocab", (), "error: "),
    ],
)
def test_what_cannot_run(run: Run, models: Models, name: str, args: tuple[str, ...], message: str) -> None:
    result = run("run", "-m", models[name], "-p", "x", *args)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_unreadable_prompt_file(run: Run, models: Models, tmp_path: Path) -> None:
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    for name, reason in (("none.txt", "No such file"), ("latin1.txt", "not UTF-8"), (".", "Is a directory")):
        result = run("run", "-m", models["hd128"], "-f", tmp_path / name)
        assert result.code == 1
        assert reason in result.err


def test_prompt_longer_than_the_context(run: Run, models: Models) -> None:
    result = run("run", "-m", models["hd128"], "-c", "256", stdin="a b c d " * 200)
    assert (result.code, result.out) == (1, "")
    assert "256" in result.err


def start(models: Models, *args: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pyllama_turbo", "run", "-m", str(models["hd128"]), *args]
    return subprocess.Popen(command, **options)  # type: ignore[call-overload,no-any-return]


def test_pipes_get_no_escape_codes(models: Models) -> None:
    with start(models, "-p", "hello", *GREEDY, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\x1b" not in out + err


@pytest.mark.parametrize("no_color", [False, True])
def test_terminal(models: Models, no_color: bool) -> None:
    """On a terminal errors are coloured, unless NO_COLOR is set."""
    parent, child = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | (
        {"NO_COLOR": "1"} if no_color else {}
    )
    command = [sys.executable, "-m", "pyllama_turbo", "info", "nothing.gguf"]
    done = subprocess.run(command, stdout=child, stderr=child, check=False, env=env, timeout=60)
    os.close(child)
    text = os.read(parent, 65536)
    os.close(parent)
    assert done.returncode == 1
    assert b"error:" in text
    assert (b"\x1b[31m" in text) is not no_color


def test_interrupt_while_generating(models: Models) -> None:
    args = ("-p", "hello", "-n", "-1", "-c", "128k", "--kv", "turbo3")
    with start(models, *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - began < 5
    assert b"interrupted" in err
    assert b"Traceback" not in err


def test_reader_that_goes_away(models: Models) -> None:
    args = ("-p", "hello", "-n", "-1", "-c", "128k")
    with start(models, *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 141
    assert err == b""


def test_demo(run: Run, models: Models) -> None:
    result = run("demo", "-m", models["hd64"], "-n", "8")
    assert result.code == 0
    assert "--- f16 ---" in result.out
    assert re.search(r"^turbo3: asked turbo3, stored turbo3_64: 3.25 bits a value", result.out, re.MULTILINE)
    assert re.search(r"^turbo3 +\S+ \w+ +4.92x smaller +[\d,]+ +[\d,]+ +[\d.,]+$", result.out, re.MULTILINE)
