"""`pyllama-turbo run`: a prompt in, text out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..models import resolve
from ..options import ContextOptions, GenerationOptions, ModelOptions, SamplingOptions
from .familiar import familiar_flags, translate
from .flags import GroupedCommand, given, json_option, model_option, option_flags
from .output import note, print_json, progress, size
from .prompt import prompt_options, read_prompt, unescaped
from .prompt_cache import PromptCache, prompt_cache_options

if TYPE_CHECKING:
    from ..context import Context
    from ..generate import Event
    from ..kv import KVReport
    from ..model import Model


@click.command("run", cls=GroupedCommand)
@model_option
@prompt_options
@click.option("-e", "--escape/--no-escape", help=r"Read \n, \t, \\ and the like in the text.")
@click.option("-q", "--quiet", "--no-perf", "--no-show-timings", "quiet", is_flag=True, help="Print no timings.")
@click.option("-no-cnv", "--no-conversation", "plain", is_flag=True, help="Accepted: no chat template is applied.")
@json_option
@prompt_cache_options
@option_flags(GenerationOptions, SamplingOptions, ContextOptions, ModelOptions)
@familiar_flags
def command(
    model: str,
    prompt: str | None,
    file: str | None,
    escape: bool,
    quiet: bool,
    plain: bool,
    as_json: bool,
    prompt_cache: str | None,
    prompt_cache_all: bool,
    prompt_cache_ro: bool,
    **values: Any,
) -> int:
    """Continue a text with a model.

    The text comes from -p, from a file or from standard input. What the model writes goes to stdout as it is made;
    timings and KV types follow on stderr. The text is continued as it is: no chat template is applied.
    """
    values = translate(values)
    cache = PromptCache(prompt_cache, everything=prompt_cache_all, read_only=prompt_cache_ro)
    text = read_prompt(prompt, file)
    text = unescaped(text) if escape else text
    with (
        load_model(resolve(model), **given(values, ModelOptions)) as opened,
        make_context(opened, **given(values, ContextOptions)) as ctx,
    ):
        cache.load(ctx)
        return _generate(ctx, text, given(values, GenerationOptions, SamplingOptions), cache, quiet, as_json)


def load_model(path: Path, **options: Any) -> Model:
    """Load a model with a progress bar."""
    from ..model import Model

    with progress(f"loading {path.name}") as update:
        return Model.open(path, progress=update, **options)


def make_context(model: Model, **options: Any) -> Context:
    """Make a context; a bar shows the one-time measurement of the model's mean keys, where that is needed."""
    with progress("measuring mean keys, once for this model") as update:
        return model.context(progress=update, **options)


def _generate(ctx: Context, text: str, options: dict[str, Any], cache: PromptCache, quiet: bool, as_json: bool) -> int:
    from ..generate import generate

    parts: list[str] = []
    interrupted = False
    with generate(ctx, text, **options) as run:
        try:
            for event in run:
                if not parts:
                    cache.prompt_done(ctx, event)
                parts.append(event.text)
                if not as_json and event.text:
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            interrupted = True
    last = run.last
    cache.finished(ctx)
    if as_json:
        print_json(_result("".join(parts), last, ctx.kv, interrupted) | {"prompt_cache": cache.facts()})
    else:
        click.echo()
        if not quiet and last is not None:
            _timings(last, ctx.kv, interrupted)
            if cache.path is not None:
                note(f"cache      {cache.line(last)}")
    return 130 if interrupted else 0


def f16_bytes(report: KVReport) -> int:
    """What the same cache would take in f16."""
    n_values = sum(
        8 * n / bits
        for layer in report.effective
        for n, bits in ((layer.k_bytes, layer.k_bits), (layer.v_bytes, layer.v_bits))
        if bits
    )
    return round(2 * n_values)


def kv_line(report: KVReport) -> str:
    """Requested and effective types of a cache, and its size, in one line."""
    asked = "/".join(dict.fromkeys(report.requested))
    stored = sorted({"/".join(dict.fromkeys(filter(None, (x.type_k, x.type_v)))) for x in report.effective})
    if not stored:
        return f"asked {asked}, the model has no KV cache"
    return (
        f"asked {asked}, stored {', '.join(stored)}: {report.bits:.4g} bits a value, "
        f"{size(report.bytes)} ({size(f16_bytes(report))} in f16)"
    )


def centering_line(report: KVReport) -> str:
    """What is done about the mean of the keys, in one line."""
    centering = report.centering
    if not centering.source:
        return f"keys not centred: {centering.reason}" if centering.reason else "keys not centred"
    kept = ", ".join(map(str, centering.q8_layers))
    runs = sorted({x.k_center for x in report.effective if x.k_center.startswith("runs")})
    how = f"keys centred, by {', '.join(runs)} cells" if runs else "keys centred"
    return how + (f"; q8_0 keys in layers {kept}, which a centre does not help enough" if kept else "")


def _timings(last: Event, report: KVReport, interrupted: bool) -> None:
    reused = f" ({last.n_reused} from the cache)" if last.n_reused else ""
    reason = "interrupted" if interrupted else f"ended by {last.finish_reason}"
    note("")
    note(f"prompt     {last.n_prompt:,} tokens{reused}, {last.prompt_tok_s:,.1f} tokens/s")
    note(f"generated  {last.n_generated:,} tokens, {last.decode_tok_s:,.1f} tokens/s, {reason}, seed {last.seed}")
    note(f"kv         {kv_line(report)}")
    if report.requested[0] != "f16":
        note(f"           {centering_line(report)}")


def _result(text: str, last: Event | None, report: KVReport, interrupted: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"text": text, "interrupted": interrupted}
    if last is not None:
        keys = (
            "n_prompt",
            "n_reused",
            "n_generated",
            "prompt_tok_s",
            "decode_tok_s",
            "finish_reason",
            "stop_text",
            "seed",
        )
        result |= {key: getattr(last, key) for key in keys}
    result["kv"] = {
        "requested": report.requested,
        "bytes": report.bytes,
        "f16_bytes": f16_bytes(report),
        "bits": report.bits,
        "layers": report.effective,
        "centering": report.centering,
    }
    return result
