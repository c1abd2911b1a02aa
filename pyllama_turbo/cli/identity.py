"""`pyllama-turbo identity`: do two settings choose the same tokens?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OptionError, StateError
from ..models import resolve
from ..options import ContextOptions, ModelOptions, build
from ._lab import model_keywords, steps
from .flags import GroupedCommand, json_option, model_option, option_flags
from .output import note, print_json, print_table
from .run import load_model

if TYPE_CHECKING:
    from ..model import Model
    from ..quality.identity import GreedyRun

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("identity", cls=GroupedCommand)
@model_option
@click.option(
    "-a",
    "setting_a",
    default="kv=f16",
    show_default=True,
    metavar="SETTING",
    help="Context options of the first run, as kv=turbo3,flash_attn=on.",
)
@click.option("-b", "setting_b", metavar="SETTING", help="Context options of the second run.")
@click.option(
    "--save", type=_FILE, metavar="FILE", help="Write the first run to a file, for another process to compare."
)
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with a saved run: other switches, another build, another device.",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompts, one a line. [default: eight built-in ones]",
)
@click.option("-n", "n_tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens of each prompt.")
@json_option
@option_flags(ModelOptions)
def command(
    model: str,
    setting_a: str,
    setting_b: str | None,
    save: Path | None,
    against: Path | None,
    file: Path | None,
    n_tokens: int,
    as_json: bool,
    **values: Any,
) -> int:
    """Compare greedy continuations of two settings; exit with 1 if they differ.

    For each prompt that differs, the table shows where, the two tokens, and how far each run's choice was ahead of its
    runner-up: a small gap is a coin toss, a large one is an error.

    \b
      pyllama-turbo identity -m M -a kv=f16 -b kv=turbo4_tcq
      pyllama-turbo identity -m M -a kv=turbo3 --save on.json
      GGML_CUDA_DISABLE_GRAPHS=1 pyllama-turbo identity -m M -a kv=turbo3 --against on.json
    """
    if sum(option is not None for option in (setting_b, save, against)) != 1:
        raise OptionError("there is nothing to compare with", hint="give one of -b, --save and --against")
    prompts = _prompts(file)
    with load_model(resolve(model), **model_keywords(values)) as opened:
        run_a = _run(opened, setting_a, prompts, n_tokens)
        facts_a = _facts(opened, setting_a)
        if save is not None:
            record = {**facts_a, "runs": [asdict(run) for run in run_a]}
            save.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
            return 0
        if against is not None:
            facts_b, run_b = _load(against)
        else:
            facts_b, run_b = _facts(opened, str(setting_b)), _run(opened, str(setting_b), prompts, n_tokens)
        return _report(opened, (facts_a, run_a), (facts_b, run_b), as_json)


def _prompts(file: Path | None) -> tuple[str, ...]:
    from ..quality.identity import PROMPTS

    if file is None:
        return PROMPTS
    lines = tuple(line for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    if not lines:
        raise OptionError(f"{file} holds no prompt", asked=str(file))
    return lines


def _run(model: Model, setting: str, prompts: Sequence[str], n_tokens: int) -> list[GreedyRun]:
    from ..quality.identity import greedy

    keywords: dict[str, Any] = {}
    for item in (part for part in setting.split(",") if part.strip()):
        name, separator, value = item.partition("=")
        if not separator:
            raise OptionError(f"{item!r} is no setting", asked=item, hint="write kv=turbo3,flash_attn=on")
        keywords[name.strip()] = value.strip()
    longest = max(len(model.tokenizer.encode(prompt)) for prompt in prompts)
    options = build(ContextOptions, {"n_ctx": longest + n_tokens, **keywords})
    from ..context import Context

    with Context(model, options) as context, steps() as step:
        return greedy(context, prompts, n_tokens, lambda done: step(setting, done, len(prompts)))


def _facts(model: Model, setting: str) -> dict[str, Any]:
    """What a run was made with: setting, model, library, layers on the GPU, switches."""
    import os

    from ..bench.flags import SWITCHES, is_on
    from ..buildinfo import build_info

    info = build_info()
    return {
        "setting": setting,
        "model": model.path.name,
        "digest": str(info.get("digest", "")),
        "backend": str(info.get("backend", "")),
        "n_gpu_layers": int(model.options.n_gpu_layers),
        "off": [name for name in SWITCHES if not is_on(name, os.environ)],
    }


def _load(path: Path) -> tuple[dict[str, Any], list[GreedyRun]]:
    from ..quality.identity import GreedyRun

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        runs = [GreedyRun(r["prompt"], tuple(r["tokens"]), tuple(r["gaps"])) for r in data.pop("runs")]
        return dict(data), runs
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{path} holds no saved run: {error}", asked=str(path)) from None


def _line(name: str, facts: dict[str, Any]) -> str:
    off = f", {' and '.join(facts['off'])} off" if facts.get("off") else ""
    place = f"{facts.get('backend')}, {facts.get('n_gpu_layers')} layers on the GPU"
    return f"{name}: {facts.get('setting')} on {place}, library {facts.get('digest')}{off}"


def _report(
    model: Model, a: tuple[dict[str, Any], list[GreedyRun]], b: tuple[dict[str, Any], list[GreedyRun]], as_json: bool
) -> int:
    from ..quality.identity import compare_runs

    try:
        result = compare_runs(a[1], b[1])
    except ValueError as error:
        raise OptionError(str(error), hint="use the prompts of the saved run") from None
    if as_json:
        print_json({"identical": result.identical, "a": a[0], "b": b[0], **asdict(result)})
        return 0 if result.identical else 1
    for name, (facts, _) in (("A", a), ("B", b)):
        note(_line(name, facts))
    if result.identical:
        click.echo(f"identical: {result.n_tokens:,} tokens of {result.n_prompts} prompts")
        return 0

    def shown(token: int) -> str:
        return repr(model.tokenizer.piece(token, special=True).decode("utf-8", "replace"))

    click.echo(f"different: {len(result.differences)} of {result.n_prompts} prompts")
    rows = [
        (d.prompt + 1, d.position, shown(d.token_a), d.gap_a, shown(d.token_b), d.gap_b) for d in result.differences
    ]
    print_table(("PROMPT", "AFTER", "A", "A'S GAP", "B", "B'S GAP"), rows)
    return 1
