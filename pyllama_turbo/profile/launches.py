"""How the kernels of a step are launched, and what the expert matmul of a mixture of experts does: levers L2, L4, L6.

Everything here is counted from what ran, never from what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .events import Event

if TYPE_CHECKING:
    from ..gguf import GGUFFile

__all__ = ["ExpertMatmul", "ExpertShape", "Launches", "count_launches", "expert_matmul", "expert_shape"]

_PRODUCT = re.compile(r"mul_mat_(vec_)?q|mul_mat_vec_f|mul_mat_f|vector_products_kernel|^MUL_MAT_ID")
_MIX = re.compile(r"expert_mix_kernel")  # the last product, weighted and summed: a block does all experts
_TOP_K = re.compile(r"topk_moe", re.IGNORECASE)


@dataclass(frozen=True)
class Launches:
    """Launches of a step, means over the recorded ones.

    Attributes:
        kernels: kernels that ran.
        graph_launches: CUDA graphs launched.
        graph_kernels: kernels that ran as part of one.
        alone: kernels launched one by one.
        fused_top_k: kernels that choose the experts in one go (softmax, sort and weights together).
    """

    kernels: float
    graph_launches: float
    graph_kernels: float
    alone: float
    fused_top_k: float

    def record(self) -> dict[str, Any]:
        """As part of a result record."""
        return asdict(self)


@dataclass(frozen=True)
class ExpertShape:
    """The experts of a model, from its file.

    Attributes:
        n_used: experts a token uses.
        separate: layers with a gate and an up matrix of their own.
        merged: layers where both are one matrix, so that there is nothing left to fuse.
        n_bytes: bytes of expert matrices that a token reads.
    """

    n_used: int
    separate: int
    merged: int
    n_bytes: int


@dataclass(frozen=True)
class ExpertMatmul:
    """The expert matmul of a step.

    Attributes:
        us_step, calls_step, us_call: its time and calls; a fused up+gate is one call.
        gb_s: bytes of expert weights over its time.
        of_peak: that over the measured copy rate, 0 where it is unknown.
        batched: mean experts of a call: all that a token uses where they go in one launch, 0 where not known.
        separate, merged: see `ExpertShape`.
        fired: layers in which up and gate ran as one kernel with their activation, counted: the calls that are missing
            from three (two) for each layer with separate (merged) matrices.
    """

    us_step: float
    calls_step: float
    us_call: float
    gb_s: float
    of_peak: float
    batched: float
    separate: int
    merged: int
    fired: float

    def record(self) -> dict[str, Any]:
        """As part of a result record."""
        return asdict(self)


def count_launches(events: Sequence[Event], n_steps: int) -> Launches:
    """Count the kernels of `n_steps` steps; on the CPU every operation counts as a kernel launched alone.

    Raises:
        ValueError: no steps.
    """
    if n_steps < 1:
        raise ValueError("launches are counted over at least one step")
    kernels = [event for event in events if not event.name.startswith(("memcpy", "memset"))]
    in_graph = [event for event in kernels if event.graph]
    return Launches(
        kernels=len(kernels) / n_steps,
        graph_launches=len({event.launch for event in in_graph}) / n_steps,
        graph_kernels=len(in_graph) / n_steps,
        alone=(len(kernels) - len(in_graph)) / n_steps,
        fused_top_k=sum(bool(_TOP_K.search(event.name)) for event in kernels) / n_steps,
    )


def expert_shape(files: Sequence[GGUFFile], n_expert: int, n_expert_used: int) -> ExpertShape | None:
    """What the tensors of a model say about its experts; None for one without."""
    if n_expert < 1:
        return None
    tensors = {name: info for file in files for name, info in file.tensors.items()}
    matrices = {name: info for name, info in tensors.items() if name.endswith("_exps.weight")}
    if not matrices:
        return None
    return ExpertShape(
        n_used=n_expert_used,
        separate=sum(name.endswith(".ffn_gate_exps.weight") for name in matrices),
        merged=sum(name.endswith(".ffn_gate_up_exps.weight") for name in matrices),
        n_bytes=sum(info.n_bytes for info in matrices.values()) * n_expert_used // n_expert,
    )


def _is_expert_product(event: Event, shape: ExpertShape) -> bool:
    """A matmul whose grid has one slice for each expert in use; on the CPU the operation says so itself."""
    if _MIX.search(event.name):
        return True
    if not _PRODUCT.search(event.name):
        return False
    return event.name.startswith("MUL_MAT_ID") or (shape.n_used > 1 and event.grid[1] == shape.n_used)


def expert_matmul(
    events: Sequence[Event], n_steps: int, shape: ExpertShape | None, peak_gb_s: float = 0.0
) -> ExpertMatmul | None:
    """The expert matmul of a profile; None for a model without experts, or one whose calls cannot be told apart.

    Args:
        events: of steps of one token each.
        n_steps: their number.
        shape: see `expert_shape`.
        peak_gb_s: measured copy rate of the device.
    """
    found = [event for event in events if shape is not None and _is_expert_product(event, shape)]
    total = sum(event.ns for event in found)
    if shape is None or not total:
        return None
    rate = shape.n_bytes * n_steps / total
    calls = len(found) / n_steps
    return ExpertMatmul(
        us_step=total / n_steps / 1e3,
        calls_step=calls,
        us_call=total / len(found) / 1e3,
        gb_s=rate,
        of_peak=rate / peak_gb_s if peak_gb_s else 0.0,
        batched=sum(shape.n_used if _MIX.search(event.name) else event.grid[1] for event in found) / len(found),
        separate=shape.separate,
        merged=shape.merged,
        fired=max(0.0, 3.0 * shape.separate + 2.0 * shape.merged - calls),
    )
