"""`pyllama-turbo calibrate`: measure a model's mean keys and keep them for its compressed caches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..models import resolve
from ..options import ModelOptions
from .flags import GroupedCommand, given, json_option, model_option, option_flags
from .output import note, print_json, print_table, progress
from .run import load_model

if TYPE_CHECKING:
    from ..centers import KeyMeans


@click.command("calibrate", cls=GroupedCommand)
@model_option
@click.option("-f", "--file", metavar="FILE", type=click.Path(), help="Measure over this text, not the built-in one.")
@click.option("-o", "--out", metavar="FILE", type=click.Path(), help="Write here, for --k-center FILE.")
@click.option("-t", "--threads", metavar="N", type=click.IntRange(0, 512), default=0, help="Threads; 0 = all.")
@json_option
@option_flags(ModelOptions)
def command(model: str, file: str | None, out: str | None, threads: int, as_json: bool, **values: Any) -> int:
    """Measure the mean keys of a model.

    The first context with a compressed K type does this by itself; this command does it anew, over a text of your
    own if you like, and shows by layer how far 3-bit keys would disturb the attention, without and with centred
    keys. Layers that stay above the limit get q8_0 keys.
    """
    from ..centers import DISTURBANCE_LIMIT, calibrate, save, sidecar

    path = resolve(model)
    text = Path(file).read_text(encoding="utf-8") if file else None
    with load_model(path, **given(values, ModelOptions)) as opened:
        with progress("measuring mean keys") as update:
            means = calibrate(opened, text=text, n_threads=threads, progress=update)
        owner = opened.files.fingerprint
        target = Path(out) if out else sidecar(owner)
        save(means, target, owner)
    if as_json:
        print_json(_facts(means, target))
        return 0
    bad = set(means.badly_conditioned())
    print_table(
        ("layer", "as they are", "centred, balanced", "keys"),
        [(x.layer, x.before, x.after, "q8_0" if x.layer in bad else "as asked") for x in means.layers],
    )
    note(f"disturbance in nats, limit {DISTURBANCE_LIMIT:g}; written to {target}")
    return 0


def _facts(means: KeyMeans, target: Path) -> dict[str, Any]:
    return {
        "file": target,
        "hash": means.hash,
        "q8_layers": means.badly_conditioned(),
        "layers": [{"layer": x.layer, "before": x.before, "after": x.after, "roped": x.roped} for x in means.layers],
    }
