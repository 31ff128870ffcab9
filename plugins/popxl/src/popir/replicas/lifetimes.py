"""Lifetimes of temporaries: the node after which each is no longer needed.

Temporaries have names that begin with `%`. They hold nothing from run to run. To drop a
temporary after its last reader keeps few arrays in memory, and lets a sum be made in
an array that nothing else needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.programs import Copy, Execute, Node, Repeat, Steps, StreamIn, StreamOut
from engine.programs import Switch as Branch


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The temporaries that the nodes of an executable's programs need last."""

    last: dict[int, tuple[str, ...]]
    """By the id of a node: the temporaries that nothing reads after it."""
    fed: frozenset[str]
    """Temporaries that only graphs read."""
    summed: frozenset[str]
    """Temporaries that only graphs make, and whose last use is one stream that sends
    them.
    """


def lifetimes(programs: Iterable[Node]) -> Lifetimes:
    """Return the lifetimes of the temporaries of `programs`."""
    nodes = [node for program in programs for node in walk(program)]
    graphs, sent, copied = Counter[str](), Counter[str](), Counter[str]()
    made: set[str] = set()
    other: set[str] = set()
    for node in nodes:
        match node:
            case Execute():
                graphs.update(node.inputs.values())
                made.update(node.outputs.values())
            case StreamOut():
                sent[node.variable] += 1
            case StreamIn():
                other.add(node.variable)
            case Copy():
                copied[node.source] += 1
                other.add(node.target)
            case Branch():
                copied[node.selector] += 1
    read = graphs + sent + copied
    last: dict[int, tuple[str, ...]] = {}
    for node in nodes:
        if isinstance(node, Steps):
            last |= _ends_in(node, read)
    ended = {name for names in last.values() for name in names}
    sums = {
        node.variable
        for node in nodes
        if isinstance(node, StreamOut) and node.variable in last.get(id(node), ())
    }
    return Lifetimes(
        last,
        frozenset(n for n in ended if n in graphs and not sent[n] + copied[n]),
        frozenset(n for n in sums & made - other if sent[n] == 1 and not copied[n]),
    )


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes in it."""
    yield node
    match node:
        case Steps():
            inner: Iterable[Node] = node.nodes
        case Repeat():
            inner = (node.body,)
        case Branch():
            others = () if node.default is None else (node.default,)
            inner = (*node.cases.values(), *others)
        case _:
            return
    for each in inner:
        yield from walk(each)


def _ends_in(steps: Steps, read: Counter[str]) -> dict[int, tuple[str, ...]]:
    """Return the temporaries that begin and end among the nodes of `steps`."""
    begun: dict[str, int] = {}
    seen = Counter[str]()
    ends: dict[str, int] = {}
    for at, node in enumerate(steps.nodes):
        for each in walk(node):
            for name in _reads(each):
                if begun.get(name, at) < at:
                    seen[name] += 1
                    ends[name] = at
        for name in _writes(node):
            begun.setdefault(name, at)
    found: dict[int, tuple[str, ...]] = {}
    for name, at in ends.items():
        if name.startswith("%") and seen[name] == read[name]:
            key = id(steps.nodes[at])
            found[key] = (*found.get(key, ()), name)
    return found


def _reads(node: Node) -> Iterable[str]:
    match node:
        case Execute():
            return node.inputs.values()
        case StreamOut():
            return (node.variable,)
        case Copy():
            return (node.source,)
        case Branch():
            return (node.selector,)
    return ()


def _writes(node: Node) -> Iterable[str]:
    match node:
        case Execute():
            return node.outputs.values()
        case StreamIn():
            return (node.variable,)
        case Copy():
            return (node.target,)
    return ()
