"""Raise KeyboardInterrupt at a chosen point of the product, as Control-C may."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: The instructions after which the interpreter runs signal handlers.
_CHECKED = ("CALL", "JUMP_BACKWARD", "RESUME")


@cache
def _points_of(code: CodeType) -> frozenset[int]:
    """Return the offsets before which a signal handler may have run."""
    found = set()
    before = ""
    for instruction in dis.get_instructions(code):
        if before.startswith(_CHECKED) and not before.startswith("CALL_INTRINSIC"):
            found.add(instruction.offset)
        before = instruction.opname
    return frozenset(found)


def interrupt(call: Callable[[], object], number: int, *files: str) -> bool:
    """Make a call, and raise KeyboardInterrupt at point `number` of those in `files`
    (paths in the repository, or their beginnings) at which a signal handler may run.
    Return whether there are so many points. Compiled files have none.
    """
    paths = tuple(str(ROOT / file) for file in files)
    left = number

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(paths):
                return None
            frame.f_trace_opcodes = True
        elif event == "opcode" and frame.f_lasti in _points_of(frame.f_code):
            nonlocal left
            left -= 1
            if not left:
                sys.settrace(before)
                raise KeyboardInterrupt
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0
