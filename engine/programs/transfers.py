"""Number of transfers of each stream in one run (device iterations)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.errors import InvalidModel
from engine.programs.executable import (
    Executable,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)
from engine.programs.program import walk

#: The most transfers of one stream in a run. A model with more is refused.
MAX_TRANSFERS = 1 << 20


def stream_transfers(executable: Executable, programs: Iterable[int]) -> dict[str, int]:
    """Return the most transfers of each stream in one run of `programs`, by handle.

    Raises InvalidModel above `MAX_TRANSFERS`.
    """
    total: Counter[str] = Counter()
    known: dict[int, Counter[str]] = {}
    for number in programs:
        if number in executable.programs:
            total.update(_of_program(executable, number, known))
    for handle, count in total.items():
        if count > MAX_TRANSFERS:
            raise InvalidModel(
                f"a run transfers stream {handle!r} {count} times; the limit is "
                f"{MAX_TRANSFERS} that are possible"
            )
    return {handle: count for handle, count in total.items() if count}


def is_conditional(executable: Executable, programs: Iterable[int]) -> bool:
    """Return whether the data decides which streams are used, because there is a
    switch.
    """
    seen: set[int] = set()
    todo = [number for number in programs if number in executable.programs]
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        for node in walk(executable.programs[number]):
            if isinstance(node, Switch):
                return True
            if isinstance(node, ProgramCall):
                todo.append(node.program)
    return False


def _of_program(
    executable: Executable, number: int, known: dict[int, Counter[str]]
) -> Counter[str]:
    # Remember the result, because programs that call each other many times would take
    # for ever.
    if number not in known:
        known[number] = _of_node(executable, executable.programs[number], known)
    return known[number]


def _of_node(
    executable: Executable, node: Node, known: dict[int, Counter[str]]
) -> Counter[str]:
    total: Counter[str] = Counter()
    match node:
        case StreamIn(handle, _) | StreamOut(_, handle):
            total[handle] = 1
        case Steps(nodes):
            for child in nodes:
                total.update(_of_node(executable, child, known))
        case Repeat(count, body):
            for handle, times in _of_node(executable, body, known).items():
                total[handle] = times * count
        case Switch(_, cases, default):
            for branch in [*cases.values(), *([] if default is None else [default])]:
                total |= _of_node(executable, branch, known)
        case ProgramCall(program):
            total = _of_program(executable, program, known)
        case _:
            pass
    return total
