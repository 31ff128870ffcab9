"""Streams that programs are certain to read, in order, for prefetching."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator

from engine.programs.executable import (
    Executable,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    Switch,
)


def upcoming_reads(
    executable: Executable, programs: Iterable[int], streams: Collection[str]
) -> Iterator[str]:
    """Yield the handles of `streams` that `programs` will read, one by one.

    It ends at the first switch, because the case is known only when the switch runs. It
    is lazy, so a repeat of a million steps takes no memory.
    """
    known: dict[int, bool] = {}
    for number in programs:
        program = executable.programs.get(number)
        if program is None:
            return
        if not (yield from _reads(program, executable, streams, known)):
            return


def _reads(
    node: Node, executable: Executable, streams: Collection[str], known: dict[int, bool]
) -> Generator[str, None, bool]:
    """Yield the reads of `node`. Return whether the reads after it are certain too."""
    match node:
        case StreamIn(handle, _):
            if handle in streams:
                yield handle
        case Steps(nodes):
            for child in nodes:
                if not (yield from _reads(child, executable, streams, known)):
                    return False
        case Repeat(count, body):
            # Skip repeats whose body reads nothing, because they may have many steps.
            matters = _matters(body, executable, streams, known)
            for _ in range(count if matters else 0):
                if not (yield from _reads(body, executable, streams, known)):
                    return False
        case ProgramCall(program) if _matters(node, executable, streams, known):
            body = executable.programs[program]
            return (yield from _reads(body, executable, streams, known))
        case Switch():
            return False
        case _:
            pass
    return True


def _matters(
    node: Node, executable: Executable, streams: Collection[str], known: dict[int, bool]
) -> bool:
    """Return whether running `node` reads one of `streams`, or makes later reads
    uncertain.

    `known` remembers results for programs, because calls of calls are many even if
    programs are few.
    """
    match node:
        case StreamIn(handle, _):
            return handle in streams
        case Switch():
            return True
        case Steps(nodes):
            return any(_matters(n, executable, streams, known) for n in nodes)
        case Repeat(count, body):
            return count > 0 and _matters(body, executable, streams, known)
        case ProgramCall(program):
            if program not in known:
                body = executable.programs[program]
                known[program] = _matters(body, executable, streams, known)
            return known[program]
        case _:
            return False
