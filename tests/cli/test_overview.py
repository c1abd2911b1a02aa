"""The top command: help, version, wrong usage, the way options become flags."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from cli_result import Run

from pyllama_turbo import __version__
from pyllama_turbo.cli.flags import given
from pyllama_turbo.cli.group import COMMANDS, cli
from pyllama_turbo.options import ContextOptions, GenerationOptions, ModelOptions, SamplingOptions, specs

OPTIONS = (ModelOptions, ContextOptions, SamplingOptions, GenerationOptions)


def test_help(run: Run, snapshot: Callable[[str, str], None]) -> None:
    result = run("--help")
    assert result.code == 0
    snapshot("help", result.out)
    assert run("-h").out == result.out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: pyllama-turbo {name}")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name


def test_help_imports_neither_numpy_nor_rich_nor_the_library() -> None:
    code = (
        "import sys; from pyllama_turbo.cli import main; main(['--help']);"
        "bad = {'numpy', 'rich', 'pyllama_turbo._ffi', 'pyllama_turbo.model'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version(run: Run) -> None:
    assert run("--version").out == f"pyllama-turbo {__version__}\n"


def test_no_command_shows_help(run: Run) -> None:
    result = run()
    assert "Generate:" in result.out + result.err
    assert result.code == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("rnu",), "error: No such command 'rnu'. (did you mean run?)"),
        (("xyzzy",), "error: No such command 'xyzzy'."),
        (("--nonsense",), "error: No such option"),
        (("run", "-m", "x", "-p", "x", "--n-gpu-layer", "1"), "Did you mean"),
        (("run", "-m", "x", "-p", "x", "-c", "4q"), "is not a number such as 4096 or 4k"),
        (("run", "-m", "x", "-p", "x", "--top-p", "2"), "top_p is 2.0"),
        (("run", "-m", "x", "-p", "x", "-fa", "maybe"), "one of on, off, auto"),
        (("run", "-p", "x"), "error: Missing option '-m' / '--model'"),
        (("info",), "error: Missing argument 'MODEL'"),
    ],
)
def test_wrong_usage(run: Run, args: tuple[str, ...], message: str) -> None:
    result = run(*args)
    assert result.code == 2
    assert result.out == ""
    assert message in result.err
    assert "hint: pyllama-turbo" in result.err
    assert "Traceback" not in result.err


def _run_params() -> dict[str, click.Parameter]:
    command = cli.get_command(click.Context(cli), "run")
    assert command is not None
    return {str(param.name): param for param in command.params}


def test_every_option_with_a_flag_is_offered_by_run() -> None:
    params = _run_params()
    for spec in (spec for cls in OPTIONS for spec in specs(cls) if spec.flags):
        param = params[spec.name]
        wanted = {part for flag in spec.flags for part in flag.split("/")}
        assert set(param.opts) | set(param.secondary_opts) == wanted
        assert param.envvar == f"PYLLAMA_TURBO_{spec.name.upper()}"


def test_flags_that_hands_know() -> None:
    every = {flag for param in _run_params().values() for flag in param.opts}
    assert {"-m", "-p", "-f", "-n", "-c", "-b", "-ub", "-t", "-ngl", "-fa", "-ctk", "-ctv", "-s"} <= every
    assert {"--temp", "--top-k", "--top-p", "--min-p", "--samplers", "--seed"} <= every


def test_only_what_was_given_is_passed_on() -> None:
    values = {"n_ctx": 1024, "kv": None, "stop": (), "swa_full": False, "model": "x", "top_k": 5}
    assert given(values, ContextOptions) == {"n_ctx": 1024, "swa_full": False}
    assert given(values, GenerationOptions, SamplingOptions) == {"top_k": 5}


def test_bash_completion_of_commands_and_choices() -> None:
    code = "from pyllama_turbo.cli import main; main()"
    env = {"_PYLLAMA_TURBO_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "pyllama-turbo "}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert {line.split(",")[1] for line in done.stdout.split()} == set(COMMANDS)
    env |= {"COMP_CWORD": "3", "COMP_WORDS": "pyllama-turbo run --flash-attn o"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert [line.split(",")[1] for line in done.stdout.split()] == ["on", "off"]


def test_reference_page_is_current() -> None:
    import make_cli_reference

    assert make_cli_reference.main(["--check"]) == 0
