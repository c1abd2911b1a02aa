"""A base run and the pairs held against it: where the base is kept, what a record says, what is skipped when done."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TurboError
from .basefile import BaseFile, create, open_base
from .divergence import Divergence, summarise
from .measure import score, write_base
from .passes import open_source
from .plan import ScorePlan

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model

__all__ = ["FLOOR", "Reference", "Setting", "divergence_of", "layer_types"]

# f16 without flash attention: the same cache, the same mathematics, other roundings. On the CPU, weights meet
# activations rounded to 8 bits, and the least change anywhere rolls those dice anew. What that does to the predictions
# is part of every other divergence too, and no cache can be measured to be better.
FLOOR = {"flash_attn": "off"}

Progress = Callable[[str, int, int], None]  # label, done, total


@dataclass(frozen=True)
class Setting:
    """What is measured beside the tokens.

    Attributes:
        digest: build of the library.
        backend: "cpu" or "cuda".
        context: further keywords of the contexts, such as n_threads or flash_attn.
    """

    digest: str
    backend: str
    context: Mapping[str, Any]


def layer_types(context: Context) -> dict[str, str]:
    """Types of a cache's tensors, with the number of layers where they differ: {"effective_k": "turbo3", ...}.

    And how its keys are centred: {"effective_center": "runs of 64"}.
    """

    def count(names: list[str]) -> str:
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        return " ".join(f"{name}:{n}" for name, n in counts.items()) if len(counts) > 1 else next(iter(counts), "")

    layers = context.kv.effective
    types = {"effective_k": count([x.type_k for x in layers]), "effective_v": count([x.type_v for x in layers])}
    return {**types, "effective_center": count([x.k_center for x in layers])}


def _cache_facts(context: Context) -> dict[str, Any]:
    """What a cache is: bits, bytes, types of its tensors, centre of its keys."""
    report = context.kv
    centre = {"k_center": report.centering.source, "k_center_hash": report.centering.hash}
    return {"kv_bits": report.bits, "kv_bytes": report.bytes, **layer_types(context), **centre}


class Reference:
    """The f16 base of one model, plan and setting, and measurements against it.

    Args:
        model: a loaded model.
        plan: what is scored.
        setting: see `Setting`.
        folder: where the base and unfinished scores are kept; a name for the base follows from what it is.
        path: the base file itself, instead of a name in `folder`.
        text: name of the text, for the records.
    """

    def __init__(
        self, model: Model, plan: ScorePlan, setting: Setting, folder: Path, *, path: Path | None = None, text: str = ""
    ) -> None:
        self.model = model
        self.plan = plan
        self.setting = setting
        self.text = text
        name = f"{model.path.stem}-{self._key(self.identity)}.base"
        self.path = path or folder / name
        self._own = path is None
        self.base: BaseFile | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the base's numbers."""
        plan = self.plan
        return {
            "model": self.model.path.name,
            "model_bytes": self.model.facts.size_bytes,
            "digest": self.setting.digest,
            "backend": self.setting.backend,
            "tokens": plan.text_hash,
            "path": plan.path,
            "n_batch": plan.n_batch,
            "parallel": plan.parallel,
            "context": {k: v for k, v in sorted(self.setting.context.items()) if k not in ("k_center", "calibrate")},
        }

    @staticmethod
    def _key(identity: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:12]

    def make(self, progress: Progress = lambda *_: None) -> BaseFile:
        """The base, computed as far as it is not there yet.

        Raises:
            StateError: the given file belongs to another run.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._own and self.path.is_file():
            given = open_base(self.path)
            if not given.identity:  # llama.cpp's tool says nothing about its run: the user answers for it
                self.base = given
                return given
        identity = json.loads(json.dumps(self.identity, default=str))
        base = create(self.path, self.plan, self.model.facts.n_vocab, identity)
        if not base.complete:
            source = open_source(self.model, self.plan, **{**self.setting.context, "kv": "f16"})
            with source.context:
                write_base(source, self.plan, base, lambda done: progress("f16 base", done, self.plan.n_scored))
        self.base = base
        return base

    def measure(
        self, kv: tuple[str, str], progress: Progress = lambda *_: None, *, floor: bool = False
    ) -> dict[str, Any]:
        """The record of one KV pair; one that cannot be measured says why.

        An interrupted run leaves its scores beside the base and goes on from there.

        Args:
            kv: the pair.
            progress: told what is done.
            floor: without flash attention, which changes roundings and nothing else (see `FLOOR`).
        """
        common = self._common(kv, floor)
        try:
            base = self.base or self.make(progress)
            keywords = {**self._context(floor), "kv": kv}
            keep = self.path.with_name(f"{self.path.name}.{self._key({'kv': kv, 'context': keywords})}.npz")
            start = time.monotonic()
            calibrating = {"progress": lambda share: progress("mean keys", int(100 * share), 100)}
            source = open_source(self.model, self.plan, **keywords, **calibrating)
            with source.context as context:
                label = "floor" if floor else "/".join(dict.fromkeys(kv))
                scores = score(source, self.plan, base, lambda n: progress(label, n, self.plan.n_scored), keep)
                facts = _cache_facts(context)
            keep.unlink(missing_ok=True)
        except TurboError as error:
            return {**common, "status": "failed", "reason": error.message}
        return {**common, "status": "ok", **facts, "seconds": time.monotonic() - start, **asdict(summarise(scores))}

    def _context(self, floor: bool) -> dict[str, Any]:
        return {**self.setting.context, **(FLOOR if floor else {})}

    def _common(self, kv: tuple[str, str], floor: bool) -> dict[str, Any]:
        plan = self.plan
        return {
            "kind": "kld",
            "model": self.model.path.name,
            "model_type": self.model.facts.description,
            "type_k": kv[0],
            "type_v": kv[1],
            "floor": floor,
            "path": plan.path,
            "n_ctx": plan.n_ctx,
            "n_chunk": plan.n_chunk,
            "first": plan.first,
            "last": plan.last,
            "n_batch": plan.n_batch,
            "parallel": plan.parallel,
            "text": self.text,
            "tokens": plan.text_hash,
            "digest": self.setting.digest,
            "backend": self.setting.backend,
            "context": json.loads(json.dumps(self._context(floor), default=str)),
        }

    def done(self, kv: tuple[str, str], *, floor: bool = False) -> dict[str, Any]:
        """The fields that a finished record of this pair has, for finding it in a result file."""
        keys = (
            "model",
            "type_k",
            "type_v",
            "floor",
            "path",
            "n_batch",
            "parallel",
            "tokens",
            "digest",
            "backend",
            "context",
        )
        common = self._common(kv, floor)
        return {"kind": "kld", "status": "ok"} | {key: common[key] for key in keys}

    def discard(self) -> None:
        """Delete the base if its name was made here."""
        self.base = None
        if self._own:
            self.path.unlink(missing_ok=True)
            self.path.with_name(self.path.name + ".json").unlink(missing_ok=True)


def divergence_of(record: Mapping[str, Any]) -> Divergence:
    """The numbers of a record, for gates and tables."""
    return Divergence(**{name: record[name] for name in Divergence.__dataclass_fields__})
