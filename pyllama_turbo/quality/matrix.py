"""The quality matrix: KV pairs x paths of one model, into a result file, resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.records import ResultFile
from .plan import ScorePlan
from .reference import Reference, Setting

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["DEFAULT_PAIRS", "run_pairs"]

Progress = Callable[[str, int, int], None]

# f16 itself first: it shows the floor that the 16-bit base file leaves.
DEFAULT_PAIRS: tuple[tuple[str, str], ...] = (
    ("f16", "f16"),
    ("q8_0", "q8_0"),
    ("turbo4_tcq", "turbo4_tcq"),
    ("turbo4", "turbo4"),
    ("q4_0", "q4_0"),
    ("turbo3_tcq", "turbo3_tcq"),
    ("turbo3", "turbo3"),
    ("turbo2_tcq", "turbo2_tcq"),
    ("turbo2", "turbo2"),
    ("q8_0", "turbo4_tcq"),
    ("q8_0", "turbo3_tcq"),
    ("turbo4_tcq", "turbo3_tcq"),
    ("turbo3_tcq", "turbo2_tcq"),
)


def run_pairs(
    model: Model,
    plans: Sequence[ScorePlan],
    pairs: Sequence[tuple[str, str]],
    setting: Setting,
    folder: Path,
    *,
    base: Path | None = None,
    results: ResultFile | None = None,
    text: str = "",
    keep_base: bool = False,
    floor: bool = False,
    progress: Progress = lambda *_: None,
    show: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Measure every pair under every plan.

    Args:
        model: a loaded model.
        plans: what is scored, in which path; each has its own base.
        pairs: KV pairs.
        setting: library and context keywords.
        folder: for bases and unfinished scores.
        base: a base file to use instead, with a single plan.
        results: file the records go to; pairs that are in it already are not measured again.
        text: name of the text.
        keep_base: leave the bases in `folder`.
        floor: measure the floor of each plan too, before the pairs (see `reference.FLOOR`).
        progress: told label, scored tokens and their total.
        show: given each record as soon as it is there.

    Returns:
        The records in the order plans x pairs, those found in the file included.
    """
    found = []
    for plan in plans:
        reference = Reference(model, plan, setting, folder, path=base, text=text)
        wanted = [(kv, False) for kv in pairs]
        for kv, is_floor in [(("f16", "f16"), True), *wanted] if floor else wanted:
            record = results.find(**reference.done(kv, floor=is_floor)) if results is not None else None
            if record is None:
                record = reference.measure(kv, progress, floor=is_floor)
                if results is not None:
                    results.append(record)
            show(record)
            found.append(record)
        if not keep_base:
            reference.discard()
    return found
