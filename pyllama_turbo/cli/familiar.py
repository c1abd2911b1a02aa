"""Further flags of llama.cpp's that say in another way what an option of this package says.

`familiar_flags` adds them to a command, `translate` turns what was given into the options' own values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .flags import GroupedOption
from .prompt import read_text

_F = TypeVar("_F", bound=Callable[..., Any])

# The tensors of experts, and those of one layer; upstream's placement takes regular expressions.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_CPU = "CPU"


def _flag(*names: str, group: str, help: str, **more: Any) -> Callable[[_F], _F]:
    destination = f"familiar_{names[-1].lstrip('-').replace('-', '_')}"
    env = f"PYLLAMA_TURBO_{names[-1].lstrip('-').replace('-', '_').upper()}"
    return click.option(*names, destination, cls=GroupedOption, heading=group, help=help, envvar=env, **more)


_MODEL = (
    _flag("--mlock", group="Model", is_flag=True, help="Keep the model in RAM: --load-mode mmap+mlock."),
    _flag("--no-mmap", group="Model", is_flag=True, help="Read the file instead of mapping it: --load-mode none."),
    _flag("-cmoe", "--cpu-moe", group="Model", is_flag=True, help="Keep all experts' weights on the CPU."),
    _flag(
        "-ncmoe", "--n-cpu-moe", group="Model", metavar="N", type=click.IntRange(0),
        help="Keep the experts' weights of the first N layers on the CPU.",
    ),
    _flag(
        "--lora-scaled", group="Model", metavar="FILE:SCALE", multiple=True,
        help="LoRA adapter with a scale; several by commas, or the flag again.",
    ),
)  # fmt: skip
_CONTEXT = (
    _flag(
        "--rope-scale", group="RoPE", metavar="N", type=click.FloatRange(0, min_open=True),
        help="Stretch positions N times: --rope-freq-scale 1/N.",
    ),
    _flag("--no-warmup", group="Context", is_flag=True, help="Accepted: there is no warm-up run."),
)  # fmt: skip
_SAMPLING = (
    _flag("--grammar-file", group="Sampling", metavar="FILE", help="GBNF grammar from a file."),
    _flag("-jf", "--json-schema-file", group="Sampling", metavar="FILE", help="JSON schema from a file."),
)


def familiar_flags(function: _F) -> _F:
    """Adds the flags."""
    for add in reversed((*_SAMPLING, *_CONTEXT, *_MODEL)):
        function = add(function)
    return function


def translate(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command with those of the flags above put into the options they stand for.

    Raises:
        click.UsageError: the same thing said in two ways.
        click.FileError: a file that cannot be read.
    """
    given = {name.removeprefix("familiar_"): values.pop(name) for name in [*values] if name.startswith("familiar_")}
    _set(values, "load_mode", _load_mode(given), "--mlock or --no-mmap")
    if given.get("rope_scale"):
        _set(values, "rope_freq_scale", 1 / given["rope_scale"], "--rope-scale")
    for name in ("grammar", "json_schema"):
        if given.get(f"{name}_file"):
            _set(values, name, read_text(given[f"{name}_file"]), f"--{name.replace('_', '-')}-file")
    experts = _experts(given)
    if experts:
        values["override_tensor"] = ",".join(filter(None, (values.get("override_tensor"), *experts)))
    scaled = [part for text in given.get("lora_scaled") or () for part in text.split(",") if part]
    for part in scaled:
        if not part.rpartition(":")[0]:
            raise click.UsageError(f"--lora-scaled {part}: write FILE:SCALE")
    if scaled:
        values["lora"] = (*(values.get("lora") or ()), *scaled)
    return values


def _set(values: dict[str, Any], name: str, value: Any, flag: str) -> None:
    if value is None:
        return
    if values.get(name) is not None:
        raise click.UsageError(f"{flag} and --{name.replace('_', '-')} say the same thing: give one of them")
    values[name] = value


def _load_mode(given: dict[str, Any]) -> str | None:
    if given.get("mlock"):
        return "mlock" if given.get("no_mmap") else "mmap+mlock"
    return "none" if given.get("no_mmap") else None


def _experts(given: dict[str, Any]) -> list[str]:
    if given.get("cpu_moe"):
        return [f"{_EXPERTS}={_CPU}"]
    return [rf"blk\.{layer}{_EXPERTS}={_CPU}" for layer in range(given.get("n_cpu_moe") or 0)]
