"""Which streams programs are certain to read, and in what order: for looking ahead."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator

from engine.programs.executable import (
    Call,
    Executable,
    Node,
    Repeat,
    Sequence,
    StreamIn,
    Switch,
)
from engine.programs.program import walk


def reads_to_come(
    executable: Executable, programs: Iterable[int], streams: Collection[str]
) -> Iterator[str]:
    """The handles of `streams` that `programs` will read, one by one.

    Ends at the first switch: which case it takes is known only then. Made as it goes: a
    repeat of a million steps takes no memory.
    """
    for number in programs:
        program = executable.programs.get(number)
        if program is None or not (yield from _reads(program, executable, streams)):
            return


def _reads(
    node: Node, executable: Executable, streams: Collection[str]
) -> Generator[str, None, bool]:
    """Yields the reads of `node`; returns whether what follows is certain too."""
    match node:
        case StreamIn(handle, _):
            if handle in streams:
                yield handle
        case Sequence(nodes):
            for child in nodes:
                if not (yield from _reads(child, executable, streams)):
                    return False
        case Repeat(count, body):
            # Steps that read nothing are not walked through, however many.
            for _ in range(count if _matters(body, executable, streams) else 0):
                if not (yield from _reads(body, executable, streams)):
                    return False
        case Call(program):
            body = executable.programs[program]
            return (yield from _reads(body, executable, streams))
        case Switch():
            return False
        case _:
            pass
    return True


def _matters(node: Node, executable: Executable, streams: Collection[str]) -> bool:
    """Whether it reads one of `streams`, or is not certain."""
    for inner in walk(node):
        match inner:
            case StreamIn(handle, _) if handle in streams:
                return True
            case Switch():
                return True
            case Call(program):
                if _matters(executable.programs[program], executable, streams):
                    return True
            case _:
                pass
    return False
