"""Tools of a chat request: which may be called, which must be, and calls a template without tools can still make."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..chat_parts import Delta, ToolDelta
from ..errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from ..chat import Rendered
    from .requests import ChatRequest
    from .responses import Response


@dataclass(frozen=True)
class Tools:
    """Tools of a request.

    Attributes:
        offered: OpenAI's descriptions.
        choice: "auto", "required" or "none".
        named: the one tool was asked for by name.
    """

    offered: tuple[Mapping[str, Any], ...]
    choice: str
    named: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the tools."""
        return [str(tool["function"]["name"]) for tool in self.offered]

    def forced(self) -> tuple[str, Mapping[str, Any]]:
        """Name and argument schema of the one tool that has to be called, whatever the template knows.

        Raises:
            UnsupportedError: several tools, or a free choice: that takes a template with tools.
        """
        if self.choice != "required" or len(self.offered) != 1:
            raise UnsupportedError(
                "this model's chat template knows no tools",
                asked=self.names,
                hint="name one tool in tool_choice to have its arguments generated, or use a model made for tools",
            )
        function = self.offered[0]["function"]
        return str(function["name"]), function.get("parameters") or {"type": "object"}


def tools_of(request: ChatRequest) -> Tools:
    """The tools of a request, older keywords translated; one tool by name is that tool alone, required.

    Raises:
        OptionError: a choice that does not exist, a tool without a name.
    """
    tools = list(request.tools or [])
    choice = request.tool_choice
    if request.functions is not None:
        tools += [{"type": "function", "function": function} for function in request.functions]
    if request.function_call is not None and choice is None:
        choice = request.function_call
    for tool in tools:
        if not isinstance(tool, Mapping) or not (tool.get("function") or {}).get("name"):
            raise OptionError("a tool has no function with a name", asked=tool, hint='{"type": "function", ...}')
    if not isinstance(choice, Mapping):
        if choice not in (None, "auto", "none", "required"):
            raise OptionError(f"tool_choice is {choice!r}", asked=choice, hint="auto, none, required or a named tool")
        return Tools(() if choice == "none" else tuple(tools), choice or "auto")
    name = (choice.get("function") or choice).get("name")
    named = tuple(tool for tool in tools if tool["function"]["name"] == name)
    if not named:
        raise OptionError(f"tool_choice asks for {name!r}, which is not among the tools", asked=name)
    return Tools(named, "required", named=True)


def known_to_template(tools: Tools, rendered: Rendered) -> bool:
    """Whether the template told the model of the tools."""
    return bool(rendered.grammar) or all(name in rendered.prompt for name in tools.names)


def new_id() -> str:
    """An id for a call; not every model writes one."""
    return f"call_{secrets.token_hex(12)}"


def named_calls(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls that all have an id."""
    return [{**call, "type": "function", "id": call.get("id") or new_id()} for call in calls]


def as_call(name: str, text: str) -> dict[str, Any]:
    """A message that calls the one tool with a text as its arguments."""
    call = {"type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def chunk_of(tool: ToolDelta) -> Response:
    """News of a call in a chunk: id, type and name come once."""
    if not tool.name:
        return {"index": tool.index, "function": {"arguments": tool.arguments}}
    function = {"name": tool.name, "arguments": tool.arguments}
    return {"index": tool.index, "id": tool.id or new_id(), "type": "function", "function": function}


class ForcedStream:
    """Turns the text of a forced call into news of that call."""

    def __init__(self, name: str) -> None:
        self._name = name

    def convert(self, delta: Delta) -> Delta:
        """The same news, as arguments of the call."""
        if not delta.content:
            return delta
        name, self._name = self._name, ""
        return Delta(reasoning=delta.reasoning, tools=(ToolDelta(0, "", name, delta.content),))
