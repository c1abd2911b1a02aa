"""Devices of this machine, and where the layers of a model go."""

from __future__ import annotations

from dataclasses import dataclass

from . import _native, errors

__all__ = ["Device", "devices", "gpus", "resolve_gpu_layers"]

_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}
GPU_MARGIN_BYTES = 1 << 30  # left free on a GPU for the KV cache and compute buffers when layers are placed by "auto"


@dataclass(frozen=True)
class Device:
    """A backend device; bytes are as the driver reports them now."""

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int


def devices() -> tuple[Device, ...]:
    """All devices of the loaded library, the CPU included."""
    b = _native.binding()
    row = b.ffi.new("turbo_device *")
    found = []
    for i in range(b.lib.turbo_device_count()):
        _native.check(b, b.lib.turbo_device_get(i, row))
        found.append(
            Device(
                _native.text(b, row.name),
                _native.text(b, row.description),
                _KINDS[row.kind],
                row.free_bytes,
                row.total_bytes,
            )
        )
    return tuple(found)


def gpus() -> tuple[Device, ...]:
    """The GPUs among them."""
    return tuple(d for d in devices() if d.kind in ("gpu", "igpu"))


def resolve_gpu_layers(asked: int | str, n_layer: int, weights_bytes: int) -> int:
    """Number of layers to place on the GPU; llama.cpp counts the output layer as one more.

    Args:
        asked: a number, "auto" or "all".
        n_layer: layers of the model.
        weights_bytes: size of its tensors, for "auto".

    Raises:
        UnsupportedError: layers were asked for and there is no GPU this library can use.
    """
    available = gpus()
    if asked == 0 or (asked == "auto" and not available):
        return 0
    if not available:
        b = _native.binding()
        reason = _native.load_report().skipped.get("cuda", "this is a CPU build")
        raise errors.UnsupportedError(
            f"n_gpu_layers is {asked}, but no GPU can be used: {reason if b.backend == 'cpu' else 'none was found'}",
            asked=asked,
            limit=0,
            hint="use n_gpu_layers=0 or 'auto', or install the CUDA build",
        )
    if isinstance(asked, int):
        return min(asked, n_layer + 1)
    if asked == "all":
        return n_layer + 1
    free = sum(max(d.free_bytes - GPU_MARGIN_BYTES, 0) for d in available)
    return n_layer + 1 if weights_bytes <= free else int(n_layer * free / weights_bytes)
