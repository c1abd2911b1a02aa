"""Reading an answer while it is being written: content, reasoning and tool calls apart, as differences.

reader = AnswerReader(rendered)
for event in run:
    delta = reader.feed(event.text)
message = reader.message(complete=run.last.finish_reason == "stop")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import errors
from .chat import parse, read

if TYPE_CHECKING:
    from .chat import Rendered

__all__ = ["AnswerReader", "Delta", "ToolDelta"]


@dataclass(frozen=True)
class ToolDelta:
    """News of one tool call.

    Attributes:
        index: which call of the answer.
        id, name: set in the first news of a call, empty later.
        arguments: JSON text that was added.
    """

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Delta:
    """What a piece of text added to an answer."""

    content: str = ""
    reasoning: str = ""
    tools: tuple[ToolDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tools)


def _added(old: str, new: str) -> str:
    """What `new` adds to `old`; nothing where the parser took back what it had given."""
    return new[len(old) :] if new.startswith(old) else ""


class AnswerReader:
    """The text of one answer so far.

    Args:
        rendered: what it was asked with.
        tools: tool calls are expected; without them, a grammar or a reasoning part, text is taken as it is.
    """

    def __init__(self, rendered: Rendered, *, tools: bool = False) -> None:
        self._rendered = rendered
        self._plain = not (tools or rendered.grammar or rendered.supports_thinking)
        self._text = ""
        self._shown: dict[str, Any] = {}

    def add(self, text: str) -> None:
        """Add text without looking at it yet."""
        self._text += text

    def feed(self, text: str) -> Delta:
        """Add text; what is new in the answer's parts."""
        self.add(text)
        if self._plain:
            return Delta(content=text)
        if not text:
            return Delta()
        try:
            return self._advance(parse(self._text, self._rendered, partial=True))
        except errors.OptionError:
            return Delta()  # what it is will be clear with more text, or at the end

    def message(self, *, complete: bool) -> dict[str, Any]:
        """The answer as a message. Text that does not follow the template's format is all content.

        Args:
            complete: the model ended it itself.
        """
        if self._plain:
            return {"role": "assistant", "content": self._text}
        return read(self._text, self._rendered, complete=complete)

    def finish(self, text: str = "", *, complete: bool) -> Delta:
        """Add the last text; what `message` now holds beyond the differences given so far."""
        self.add(text)
        return Delta(content=text) if self._plain else self._advance(self.message(complete=complete))

    def _advance(self, message: dict[str, Any]) -> Delta:
        old, self._shown = self._shown, message
        content = _added(old.get("content") or "", message.get("content") or "")
        reasoning = _added(old.get("reasoning_content") or "", message.get("reasoning_content") or "")
        return Delta(content, reasoning, tuple(self._tools(old, message)))

    @staticmethod
    def _tools(old: dict[str, Any], new: dict[str, Any]) -> list[ToolDelta]:
        before, deltas = old.get("tool_calls") or [], []
        for i, call in enumerate(new.get("tool_calls") or []):
            function = call["function"]
            if i >= len(before):
                deltas.append(ToolDelta(i, call.get("id") or "", function["name"], function["arguments"]))
            elif added := _added(before[i]["function"]["arguments"], function["arguments"]):
                deltas.append(ToolDelta(i, "", "", added))
        return deltas
