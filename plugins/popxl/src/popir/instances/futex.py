"""Words of shared memory that processes wait on asleep (futex(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import threading

from popir.errors import NotYet

_CALLS = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF
_machine = os.uname().machine
_call = _CALLS.get(_machine)
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_ordering = threading.Lock()


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_SECOND = ctypes.byref(_Time(1, 0))


def check_machine() -> None:
    """Raise NotYet if this kind of processor is unknown."""
    if _call is None:
        raise NotYet(f"several instances are not supported on {_machine} processors")


def fence() -> None:
    """Order the memory accesses before this call ahead of those after it.

    x86-64 keeps the order of stores and of loads by itself.
    """
    if _machine != "x86_64":
        with _ordering:
            pass


def wait(address: int, value: int) -> bool:
    """Sleep while the word at `address` is `value`, for a second at most.

    Returns False if the second passed. May return early.
    """
    result: int = _syscall(
        ctypes.c_long(_call or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAIT),
        ctypes.c_uint32(value),
        _SECOND,
        None,
        ctypes.c_uint32(0),
    )
    return result == 0 or ctypes.get_errno() != errno.ETIMEDOUT


def wake(address: int) -> None:
    """Wake all processes that sleep on the word at `address`."""
    _syscall(
        ctypes.c_long(_call or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAKE),
        ctypes.c_int(_ALL),
        None,
        None,
        ctypes.c_uint32(0),
    )
