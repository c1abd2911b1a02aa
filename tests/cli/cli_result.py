"""What running a command gives; the type of the `run` fixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """Exit code and both streams."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]
