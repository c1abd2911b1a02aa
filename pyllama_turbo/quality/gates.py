"""Thresholds a cache setting has to pass, by name or written out, and the verdict."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import OptionError
from .divergence import Divergence

__all__ = ["LEVELS", "Check", "Gate", "Verdict", "judge", "parse_gate"]

_METRICS: dict[str, Callable[[Divergence], float]] = {
    "kld": lambda d: d.kld_mean,
    "kld_upper": lambda d: d.kld_mean + 2 * d.kld_se,
    "kld_999": lambda d: d.kld_999,
    "kld_max": lambda d: d.kld_max,
    "same_top": lambda d: d.same_top,
    "dp_rms": lambda d: d.dp_rms,
    "ppl_ratio": lambda d: d.ppl_ratio[0],
}
_OPERATORS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}
_WRITTEN = re.compile(r"^\s*(\w+)\s*(<=|>=)\s*([0-9.eE+-]+)\s*$")


@dataclass(frozen=True)
class Gate:
    """One threshold: `metric` `op` `limit`."""

    metric: str
    op: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.limit:g}"


@dataclass(frozen=True)
class Check:
    """A gate with the measured value."""

    gate: Gate
    value: float
    passed: bool


@dataclass(frozen=True)
class Verdict:
    """All gates of a run."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every gate was passed."""
        return all(check.passed for check in self.checks)


# What the levels mean, on models of 0.1 to 1.5 G parameters, where errors weigh more than on large ones:
#   near-lossless  four bits with a trellis; q8_0 with room to spare
#   good           three bits with a trellis; q4_0 with centred keys
#   fair           three bits scalar: text stays fluent, details begin to differ
LEVELS: dict[str, tuple[Gate, ...]] = {
    "near-lossless": (Gate("kld", "<=", 0.02), Gate("kld_999", "<=", 0.6), Gate("same_top", ">=", 0.93)),
    "good": (Gate("kld", "<=", 0.08), Gate("kld_999", "<=", 2.0), Gate("same_top", ">=", 0.88)),
    "fair": (Gate("kld", "<=", 0.2), Gate("kld_999", "<=", 4.0), Gate("same_top", ">=", 0.80)),
}


def parse_gate(text: str) -> tuple[Gate, ...]:
    """A level by name, or one threshold such as "kld<=0.036".

    Raises:
        OptionError: neither.
    """
    if text in LEVELS:
        return LEVELS[text]
    match = _WRITTEN.match(text)
    if match and match[1] in _METRICS:
        try:
            return (Gate(match[1], match[2], float(match[3])),)
        except ValueError:
            pass
    raise OptionError(
        f"{text!r} is no gate",
        asked=text,
        limit=(*LEVELS, *_METRICS),
        hint=f"a level ({', '.join(LEVELS)}) or METRIC<=NUMBER with {', '.join(_METRICS)}",
    )


def judge(result: Divergence, gates: Sequence[Gate]) -> Verdict:
    """Hold a result against gates. A value that is no number fails."""
    checks = []
    for gate in gates:
        value = _METRICS[gate.metric](result)
        checks.append(Check(gate, value, not math.isnan(value) and _OPERATORS[gate.op](value, gate.limit)))
    return Verdict(tuple(checks))
