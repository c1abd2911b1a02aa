"""How KV types look in every plot: upstream's grey, scalar ones blue, trellis ones orange; more bits, darker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["css_class", "default_keys", "kld_text", "pair_name", "shape", "sort_key"]

_BITS = re.compile(r"(?:turbo|q|f|bf)(\d+)")


# What `--k-center` says about the keys, for names; the default says nothing.
_KEYS = {"off": ", keys as they are", "bias": ", keys less their bias"}


def _k_center(record: Mapping[str, Any]) -> str:
    context = record.get("context")
    return str(context.get("k_center", "auto")) if isinstance(context, Mapping) else "auto"


def default_keys(record: Mapping[str, Any]) -> bool:
    """Whether the keys were centred and balanced as they are by default."""
    return _k_center(record) == "auto"


def pair_name(record: Mapping[str, Any]) -> str:
    """Short name of a record's KV pair: one name where K and V agree; and what else than the default its keys are."""
    if record.get("floor"):
        return "floor (f16, other roundings)"
    k, v = record["type_k"], record["type_v"]
    return (str(k) if k == v else f"{k}/{v}") + _KEYS.get(_k_center(record), "")


def _family(name: str) -> str:
    if "tcq" in name:
        return "tcq"
    return "scalar" if "turbo" in name else "up"


def css_class(record: Mapping[str, Any]) -> str:
    """CSS class of a record's colour: family of the key type, or of the value type where the key is upstream's."""
    family = _family(record["type_k"])
    if family == "up":
        family = _family(record["type_v"])
    match = _BITS.search(record["type_v"])
    bits = int(match[1]) if match else 16
    return f"{family} b{min(bits, 4) if family != 'up' else ('lo' if bits < 8 else 'mid' if bits < 16 else 'hi')}"


def kld_text(record: Mapping[str, Any]) -> str:
    """Mean KL divergence with its standard error; what rounds to nothing has no sign."""
    return f"{record['kld_mean']:.5f} ± {record['kld_se']:.5f}".replace("-0.00000 ", "0.00000 ")


def shape(record: Mapping[str, Any]) -> str:
    """Marker: the path that was measured, or circle."""
    return "square" if record.get("path") == "decode" else "circle"


def sort_key(record: Mapping[str, Any]) -> tuple[float, str]:
    """Order in tables: most bits first."""
    return (-float(record.get("kv_bits") or 0.0), pair_name(record))
