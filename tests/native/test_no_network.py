"""Nothing but `pyllama-turbo models` touches the network: a process that a socket would end does all the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

EVERYDAY = """
import contextlib, io, no_sockets, sys
no_sockets.install()
from pyllama_turbo import Chat, Model, Sampler, grammar, kv, state
from pyllama_turbo.cli import main
with Model.open(sys.argv[1]) as model, model.context(128, kv="turbo3") as context:
    assert context.complete("the quick fox", max_tokens=4)
    assert list(Chat(context).send("hello", max_tokens=4))
    state.set_bytes(context, state.get_bytes(context))
    Sampler(model, grammar=grammar.from_schema({"type": "integer"})).close()
kv.types()
for command in (["doctor"], ["kv"], ["info", sys.argv[1]], ["run", "-m", sys.argv[1], "-p", "the", "-n", "2"]):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(command) == 0, command
print("done")
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{code}",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


def test_import_and_use_open_no_socket(tiny_model: Callable[..., Path]) -> None:
    done = run(EVERYDAY, str(tiny_model()))
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_the_trap_works() -> None:
    done = run("import no_sockets, socket\nno_sockets.install()\nsocket.socket()\nprint('survived')")
    assert done.returncode == -signal.SIGSYS, (done.stdout, done.stderr)
