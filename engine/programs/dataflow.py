"""Data flow of variables in programs. It decides which values are borrowed and which
are copied.

A stream lends its data only until the program ends. So a value from a stream may be
passed on without a copy if its variable does not outlive the program. An output may be
computed directly into the stream's memory if nothing else reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from engine.programs.executable import (
    Executable,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    Switch,
)
from engine.programs.program import reads_of, walk, writes_of


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Facts on the variables of one executable."""

    persistent: frozenset[str]
    """Variables that some program reads before it writes them, so they live across
    runs.
    """
    single_use: frozenset[str]
    """Variables that one node writes, one node reads, and that are not persistent."""
    load_only: frozenset[str]
    """Variables that only stream copies of load programs write."""

    @classmethod
    def of(cls, executable: Executable, load_programs: Iterable[int]) -> Dataflow:
        """Analyse `executable`, whose `load_programs` run before all others."""
        programs = executable.programs
        persistent: set[str] = set()
        known: _Summaries = {}
        for program in programs.values():
            _live_in(program, set(), persistent, programs, known)
        reads: Counter[str] = Counter()
        writes: Counter[str] = Counter()
        for program in programs.values():
            for node in walk(program):
                reads.update(reads_of(node))
                writes.update(writes_of(node))
        single = {v for v, n in writes.items() if n == 1 and reads[v] == 1}
        return cls(
            frozenset(persistent),
            frozenset(single - persistent),
            frozenset(_load_only(programs, set(load_programs), writes)),
        )


#: For each analysed program: the variables that it reads before writing them, and those
#: that it always writes.
_Summaries: TypeAlias = dict[int, tuple[set[str], set[str]]]


def _live_in(
    node: Node,
    assigned: set[str],
    live: set[str],
    programs: Mapping[int, Node],
    known: _Summaries,
) -> None:
    """Add to `live` the variables that `node` reads and that are not in `assigned`. Add
    to `assigned` the variables that `node` always writes.
    """
    live.update(v for v in reads_of(node) if v not in assigned)
    match node:
        case Steps(nodes):
            for child in nodes:
                _live_in(child, assigned, live, programs, known)
        case Repeat(count, body):
            after_body = assigned if count else set(assigned)
            _live_in(body, after_body, live, programs, known)
        case Switch(_, cases, default):
            branches = [*cases.values(), *([] if default is None else [default])]
            after = []
            for branch in branches:
                mine = set(assigned)
                _live_in(branch, mine, live, programs, known)
                after.append(mine)
            if after:
                assigned |= set.intersection(*after)
        case ProgramCall(program):
            if program not in known:  # analyse a program once, for all its calls
                known[program] = set(), set()
                reads, writes = known[program]
                _live_in(programs[program], writes, reads, programs, known)
            reads, writes = known[program]
            live.update(reads - assigned)
            assigned |= writes
        case _:
            assigned.update(writes_of(node))


def _load_only(
    programs: Mapping[int, Node], load: set[int], writes: Counter[str]
) -> set[str]:
    others = [program for number, program in programs.items() if number not in load]
    called = {
        node.program
        for program in others
        for node in walk(program)
        if isinstance(node, ProgramCall)
    }
    streamed: Counter[str] = Counter()
    for number in (load & programs.keys()) - called:
        for node in walk(programs[number]):
            if isinstance(node, StreamIn):
                streamed[node.variable] += 1
    return {v for v, n in streamed.items() if n == writes[v]}
