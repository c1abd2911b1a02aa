"""What a context does about the mean of its keys, as data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Centering"]


@dataclass(frozen=True)
class Centering:
    """What a context does about its keys: `ctx.kv.centering`.

    Attributes:
        requested: the option's value.
        source: where the mean keys come from, or "" if keys are stored as they are.
        reason: why they are not centred, or "".
        hash: identifies the mean keys, or "".
        q8_layers: layers whose keys are q8_0 because a centre does not help them enough.
    """

    requested: str
    source: str = ""
    reason: str = ""
    hash: str = ""
    q8_layers: tuple[int, ...] = ()
