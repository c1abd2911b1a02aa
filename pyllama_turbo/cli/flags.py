"""Turns the options of `pyllama_turbo.options` into click options: each is defined there, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from .._option_spec import OptionSpec, convert, flag_value, specs
from ..errors import OptionError
from . import refused

# Options that take one text and may be given several times; the other lists are one text with separators.
REPEATED = ("stop", "dry_sequence_breakers", "lora", "logit_bias")

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic in the type stubs of click 8.2 and later only
else:
    ParamType = click.ParamType

_F = TypeVar("_F", bound=Callable[..., Any])


class SpecType(ParamType):
    """A value checked by its `OptionSpec`."""

    def __init__(self, spec: OptionSpec) -> None:
        self.spec = spec
        self.name = spec.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as the library takes it; one that the option refuses is a usage error.

        Options of `REPEATED` stay text here and are converted together, by the library.
        """
        if self.spec.name in REPEATED:
            return str(value)
        try:
            return convert(self.spec, value)
        except OptionError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The choices that begin with what was typed; none for an option without choices."""
        return [CompletionItem(c) for c in self.spec.choices if c.startswith(incomplete)]


class GroupedOption(click.Option):
    """An option that knows the heading it belongs under."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


def _rank(heading: str) -> int:
    """Place of a heading in the help: the command's own options first, what few people need last."""
    order = ("Options", "Generation", "KV cache", "Context", "Model", "Sampling", "RoPE")
    return order.index(heading) if heading in order else len(order)


class GroupedCommand(click.Command):
    """A command whose help lists the options under headings, and that knows llama.cpp's other flags by name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, but what llama.cpp's tools know and this command does not is refused with a sentence."""
        refused.check(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, in the order of `_rank`; hidden ones are left out."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "heading", "Options"), []).append(record)
        for heading in sorted(sections, key=_rank):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


def _make(spec: OptionSpec) -> click.Option:
    text = spec.help
    if spec.choices:
        text = f"{text.rstrip('.')}: {', '.join(spec.choices)}."
    if spec.kind == "bool":
        both = any("/" in flag for flag in spec.flags)
        text += f" [{spec.name.upper()}{f'; default {flag_value(spec)}' if both else ''}]"
        flags: dict[str, Any] = {"is_flag": True, "type": bool}
    else:
        default = flag_value(spec)
        text += f" [default {default}]" if default != "-" else ""
        flags = {"type": SpecType(spec), "metavar": spec.name.upper(), "multiple": spec.name in REPEATED}
    declarations = [*spec.flags, spec.name]
    return GroupedOption(declarations, default=None, help=text, envvar=spec.env, heading=spec.group, **flags)


def option_flags(*classes: type, leave_out: tuple[str, ...] = ()) -> Callable[[_F], _F]:
    """A decorator that adds a flag for every option of `classes` that has one."""

    def add(function: _F) -> _F:
        chosen = [spec for cls in classes for spec in specs(cls) if spec.flags and spec.name not in leave_out]
        params: list[click.Parameter] = getattr(function, "__click_params__", [])
        function.__click_params__ = [*reversed([_make(spec) for spec in chosen]), *params]  # type: ignore[attr-defined]
        return function

    return add


def given(values: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """The options of `classes` that were set by flag or environment; the others keep the library's defaults."""
    names = {spec.name for cls in classes for spec in specs(cls)}
    return {name: value for name, value in values.items() if name in names and value is not None and value != ()}


model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    envvar="PYLLAMA_TURBO_MODEL",
    required=True,
    help="GGUF file, or the name of a fetched model (see `models`).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
