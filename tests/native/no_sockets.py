"""Makes the kernel end this process when it opens a socket, in Python or in native code (Linux seccomp)."""

from __future__ import annotations

import ctypes
import platform
import struct

SYSCALL_SOCKET = {"x86_64": 41, "aarch64": 198}[platform.machine()]
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD_NUMBER, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_KILL, _ALLOW = 0x80000000, 0x7FFF0000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install() -> None:
    """Install the filter for this process and its children.

    Raises:
        OSError: the kernel has no seccomp.
    """
    steps = [
        (_LOAD_NUMBER, 0, 0, 0),
        (_EQUAL, 0, 1, SYSCALL_SOCKET),
        (_RETURN, 0, 0, _KILL),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(steps), code)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
