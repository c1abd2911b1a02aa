"""`chat` as a person uses it: a real terminal (tmux), keys typed one after the other, Ctrl-C at the wrong moment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
Screen = Callable[[str], str]


class Terminal:
    """A tmux session that runs one command."""

    def __init__(self, command: list[str]) -> None:
        self.name = f"pyllama-turbo-{uuid.uuid4().hex[:8]}"
        line = " ".join(f"'{word}'" for word in command)
        self._tmux("new-session", "-d", "-x", "110", "-y", "60", f"{line}; echo status=$?; sleep 60")

    def _tmux(self, *args: str) -> str:
        # a server of its own: nothing of the user's is touched, and it ends with the session
        done = subprocess.run(
            ["tmux", "-L", self.name, "-f", "/dev/null", *args], capture_output=True, text=True, cwd=ROOT, check=False
        )
        return done.stdout

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then keys by name."""
        if text:
            self._tmux("send-keys", "-l", text)
        for key in keys:
            self._tmux("send-keys", key)

    def wait(self, wanted: Callable[[str], bool]) -> str:
        """The screen, once it is as wanted."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            screen = self._tmux("capture-pane", "-p", "-J", "-S", "-")
            if wanted(screen):
                return screen
            time.sleep(0.1)
        raise AssertionError(f"the screen never came:\n{screen}")

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def chat(models: dict[str, Path]) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    command = [sys.executable, "-m", "pyllama_turbo", "chat", "-m", str(models["hd128"]), "--kv", "turbo3"]
    letters = "root ::= [a-z ]+"  # the stray bytes of a random model would move the cursor about
    terminal = Terminal([*command, "-c", "16k", "-n", "-1", "--temp", "0", "-l", "2-inf", "--grammar", letters])
    yield terminal
    terminal.close()


def prompts(n: int) -> Callable[[str], bool]:
    """Whether the screen ends with the n-th prompt for a message, and nothing typed yet."""

    def seen(screen: str) -> bool:
        lines = [line for line in screen.rstrip().splitlines() if line.startswith(">")]
        return len(lines) >= n and screen.rstrip().splitlines()[-1].strip() == ">"

    return seen


def test_a_conversation(chat: Terminal) -> None:
    chat.wait(prompts(1))
    chat.type("hello", "Enter")
    chat.wait(lambda screen: len(screen.partition("> hello")[2].strip()) > 40)
    chat.type("", "C-c")
    stopped = chat.wait(prompts(2))
    assert "(stopped)" in stopped
    assert "Traceback" not in stopped
    chat.type("/stats", "Enter")
    assert "answer" in chat.wait(prompts(3))
    chat.type("one \\", "Enter")
    chat.type("two", "Enter")
    chat.wait(lambda screen: ". two" in screen and len(screen.rpartition(". two")[2].strip()) > 20)
    chat.type("", "C-c")
    chat.wait(prompts(4))
    chat.type("/stats", "Enter")
    assert "from the cache" in chat.wait(prompts(5))
    chat.type("", "C-c")  # without an answer that runs: a hint, and the conversation goes on
    assert "/exit leaves" in chat.wait(lambda screen: "/exit leaves" in screen)
    chat.type("/nothing", "Enter")
    chat.wait(lambda screen: "there is no command /nothing" in screen)
    chat.type("", "Up", "Up")  # the history of the lines typed before
    chat.wait(lambda screen: screen.rstrip().endswith("> /stats"))
    chat.type("", "C-u", "C-d")
    assert "status=0" in chat.wait(lambda screen: "status=" in screen)
