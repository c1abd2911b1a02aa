"""Which KV cache types a model can have, told from its header: the rule the native library applies, before loading."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from . import kv
from .errors import OptionError, UnsupportedError
from .memory import KVPlan
from .shape import ModelShape

__all__ = ["KVFit", "fit", "fits", "plan"]


@dataclass(frozen=True)
class KVFit:
    """Whether one type fits a model.

    Attributes:
        kind: the type under its public name.
        stored: the exact type its cache would be made of, or None if it does not fit.
        reason: why it does not fit, or "".
    """

    kind: kv.KVType
    stored: kv.KVType | None
    reason: str


def _siblings(kind: kv.KVType) -> list[kv.KVType]:
    """The type with each of its block sizes, the largest first."""
    found = [kind]
    if kind.is_turbo:
        with contextlib.suppress(OptionError):  # a build may have one block size only
            found.append(kv.find(f"{kind.family}_64"))
    return found


def _dims(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def fit(shape: ModelShape, kind: kv.KVType) -> KVFit:
    """Whether the cache of a model can store this type, for keys or values."""
    dims = shape.head_dims
    if not shape.layers:
        return KVFit(kind, None, "the model has no KV cache")
    if kind.is_turbo and shape.mla:
        return KVFit(kind, None, "the cache holds a compressed latent (MLA)")
    for stored in _siblings(kind):
        if all(dim % stored.block_values == 0 for dim in dims):
            return KVFit(kind, stored, "")
    smallest = _siblings(kind)[-1].block_values
    return KVFit(kind, None, f"head dims {_dims(dims)} are no multiples of {smallest}")


def fits(shape: ModelShape) -> tuple[KVFit, ...]:
    """Every type of the loaded library, and whether it fits."""
    return tuple(fit(shape, kind) for kind in kv.types())


def plan(shape: ModelShape, k: str, v: str, *, n_seq: int = 1, n_ubatch: int = 512, swa_full: bool = False) -> KVPlan:
    """The memory plan of a model's cache for a pair of public names.

    Raises:
        UnsupportedError: a type does not fit the model.
        OptionError: an unknown name.
    """
    stored = []
    for name in (k, v):
        result = fit(shape, kv.find(name))
        if result.stored is None:
            alternatives = ", ".join(f.kind.name for f in fits(shape) if f.stored is not None)
            raise UnsupportedError(
                f"{name} does not fit this model: {result.reason}", asked=name, hint=f"types that fit: {alternatives}"
            )
        stored.append(result.stored)
    return KVPlan(stored[0], stored[1], n_seq=n_seq, n_ubatch=n_ubatch, swa_full=swa_full)
