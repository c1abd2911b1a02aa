#!/usr/bin/env python3
"""Write docs/api.md from the docstrings.

make_api_reference.py            write the page
make_api_reference.py --check    exit with 1 if the page is not what would be written
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from generated_pages import settle  # noqa: E402

import pyllama_turbo  # noqa: E402
from pyllama_turbo._option_spec import flag_value, specs  # noqa: E402

PAGE = ROOT / "docs" / "api.md"
HEAD = """# Python reference

Made by `scripts/make_api_reference.py` from the docstrings; do not edit. Names under the first heading come from
`pyllama_turbo` itself.
"""
SECTIONS = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples):$")


def _lines(doc: str) -> Iterator[str]:
    """A docstring as markdown: sections become lists, indented code a block."""
    section, code = "", False
    for line in doc.splitlines():
        head = SECTIONS.match(line)
        indented = line.startswith("    ")
        if code and line.strip() and not indented:
            yield "```\n"
            code = False
        if head:
            section = head[1]
            yield f"*{section}*\n"
        elif not line.strip():
            section = section if section and indented else section
            yield line.strip()
        elif indented and section:
            text = line.strip()
            deeper = line.startswith("        ")
            item = re.match(r"^([\w*`., ]+?):\s(.*)$", text) if section != "Returns" and not deeper else None
            yield f"- `{item[1]}`: {item[2]}" if item else f"  {text}" if deeper else f"- {text}"
        elif indented:
            if not code:
                yield "```python"
                code = True
            yield line[4:]
        else:
            section = ""
            yield line
    if code:
        yield "```"


def _markdown(obj: Any) -> str:
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(_lines(inspect.getdoc(obj) or "")))
    return text.replace("\n\n```\n", "\n```\n")


def _signature(obj: Any) -> str:
    try:
        text = str(inspect.signature(obj))
    except (TypeError, ValueError):
        return ""
    return re.sub(r"^\((self|cls)(, )?", "(", text).replace("'", "").replace("NoneType", "None")


def _members(cls: type) -> Iterator[tuple[str, Any, bool]]:
    """Public methods and properties defined in the package, in the order of their definition."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("pyllama_turbo"):
            continue
        for name, raw in vars(base).items():
            public = not name.startswith("_") or name == "__call__"
            kind = inspect.unwrap(raw.__func__) if isinstance(raw, (classmethod, staticmethod)) else raw
            documented = isinstance(kind, property) or inspect.isfunction(kind) or hasattr(kind, "func")
            if public and documented and name not in seen and inspect.getdoc(kind):
                seen.add(name)
                yield name, kind, isinstance(kind, property) or hasattr(kind, "func")


def _options(cls: type) -> Iterator[str]:
    yield "\n| keyword | default | meaning |\n|---|---|---|"
    for spec in specs(cls):
        text = spec.help + (f" One of {', '.join(spec.choices)}." if spec.choices else "")
        yield f"| `{spec.name}` | {flag_value(spec).replace('|', '/')} | {text.replace('|', '/')} |"


def _entry(name: str, obj: Any, depth: int) -> Iterator[str]:
    mark = "#" * depth
    if inspect.isclass(obj):
        plain = is_dataclass(obj) or issubclass(obj, BaseException)
        yield f"\n{mark} {name}{'' if plain else _signature(obj)}\n\n{_markdown(obj)}"
        if is_dataclass(obj) and specs(obj):
            yield from _options(obj)
        elif not issubclass(obj, BaseException):
            for member, kind, is_property in _members(obj):
                shown = member if is_property else member + _signature(kind)
                yield f"\n{mark}# {name}.{shown}\n\n{_markdown(kind)}"
    elif callable(obj):
        yield f"\n{mark} {name}{_signature(obj)}\n\n{_markdown(obj)}"


def _module(module: ModuleType) -> Iterator[str]:
    yield f"\n## {module.__name__}\n\n{_markdown(module)}"
    for name in module.__all__:
        if name in pyllama_turbo.__all__:
            yield f"\n### {name}\n\nAs `pyllama_turbo.{name}` above."
        elif not isinstance(getattr(module, name), (str, int, tuple, dict)):
            yield from _entry(name, getattr(module, name), 3)


def page() -> str:
    """The text of the page."""
    parts = [HEAD, f"## pyllama_turbo\n\n{_markdown(pyllama_turbo)}"]
    modules = []
    for name in pyllama_turbo.__all__:
        obj = getattr(pyllama_turbo, name)
        if isinstance(obj, ModuleType):
            modules.append(obj)
        elif name != "__version__":
            parts += _entry(name, obj, 3)
    for module in (*modules, importlib.import_module("pyllama_turbo.compat")):
        parts += _module(module)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)) + "\n"


def main(argv: list[str]) -> int:
    """Command line: see the module's docstring."""
    return settle({PAGE: page()}, "make_api_reference.py", argv == ["--check"])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
