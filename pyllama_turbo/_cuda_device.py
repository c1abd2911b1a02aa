"""Whether the GPUs of this machine can run a CUDA library, asked before it touches one: kernels compiled for another
architecture fail at the first launch."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable

__all__ = ["compute_capabilities", "why_not"]

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def compute_capabilities(driver: ctypes.CDLL) -> list[int]:
    """Compute capability of each GPU, 75 for 7.5; empty where the driver does not say.

    Args:
        driver: libcuda, loaded.
    """
    count, value = ctypes.c_int(0), ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found = []
    for device in range(count.value):
        parts = []
        for attribute in (_MAJOR, _MINOR):
            if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
                return []
            parts.append(value.value)
        found.append(10 * parts[0] + parts[1])
    return found


def _runs(architecture: str, capability: int) -> bool | None:
    match = re.match(r"(\d+)[a-z]?(-real|-virtual)?$", architecture)
    if match is None:
        return None
    built = int(match[1])
    same_major = built // 10 == capability // 10
    # Compiled code runs on later GPUs of its generation; intermediate code, left out by "-real", on all later.
    return capability >= built and (match[2] != "-real" or same_major)


def why_not(architectures: Iterable[str], capabilities: Iterable[int]) -> str:
    """Why none of the GPUs can run kernels built for these CMake architectures ("86", "90-real"); "" if one can.

    What is not understood counts as running: the driver has the last word.
    """
    names, gpus = list(architectures), sorted(set(capabilities))
    if not names or not gpus or any(_runs(name, gpu) is not False for name in names for gpu in gpus):
        return ""
    built = ", ".join(f"sm_{re.split('[-a-z]', name)[0]}" for name in names)
    here = ", ".join(f"sm_{gpu}" for gpu in gpus)
    return f"the cuda library was built for {built}, and this machine's GPU is {here}"
