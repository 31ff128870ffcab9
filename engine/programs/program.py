"""Programs: instructions for a device, as trees of a few node kinds.

A program works on *variables*, which are device memory that lives across runs. The
graphs that `Execute` runs do the arithmetic. Each node is written as a small map whose
`do` names its kind:

    sequence    nodes, one after the other
    stream_in   the next data of an input stream becomes the value of a variable
    execute     a graph runs over variables
    stream_out  the value of a variable leaves through an output stream
    copy        one variable becomes another's value
    repeat      a node, a fixed number of times (device iterations)
    switch      one of several nodes, chosen by the integer in a variable
    call        another program of the same executable
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

MAX_DEPTH = 64
"""Deepest nesting of nodes."""
MAX_NODES = 1 << 20
"""Nodes of all programs of one executable."""
MAX_REPEAT = 1 << 31
MAX_NAME = 1 << 16
"""Characters of a name. Names of tensors come from models and may be long."""

_SELECTOR_RANGE = 1 << 63


@dataclass(frozen=True, slots=True)
class Steps:
    """Runs its nodes in order."""

    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamIn:
    """Sets `variable` to the next data of the input stream `handle`."""

    handle: str
    variable: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Runs `graph`. The keys are the graph's own names and the values are variables."""

    graph: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamOut:
    """Sends the value of `variable` through the output stream `handle`."""

    variable: str
    handle: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Sets `target` to the value of `source`."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """Runs `body` `count` times."""

    count: int
    body: Node


@dataclass(frozen=True, slots=True)
class Switch:
    """Runs the case whose number is in the variable `selector` (one integer).

    Only the chosen case touches its streams. Without `default`, a number without a case
    is an error in the caller's input.
    """

    selector: str
    cases: Mapping[int, Node] = field(default_factory=dict)
    default: Node | None = None


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """Runs another program."""

    program: int


Node: TypeAlias = (
    Steps | StreamIn | Execute | StreamOut | Copy | Repeat | Switch | ProgramCall
)


class BadProgram(Exception):
    """A document that is not a program. It becomes InvalidModel once the model is
    known.
    """


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and all nodes inside it, outermost first."""
    yield node
    if isinstance(node, Steps):
        for child in node.nodes:
            yield from walk(child)
    elif isinstance(node, Repeat):
        yield from walk(node.body)
    elif isinstance(node, Switch):
        for child in node.cases.values():
            yield from walk(child)
        if node.default is not None:
            yield from walk(node.default)


def reads_of(node: Node) -> tuple[str, ...]:
    """Return the variables that `node` itself reads, without the nodes inside it."""
    match node:
        case Execute(_, inputs, _):
            return tuple(inputs.values())
        case StreamOut(variable, _):
            return (variable,)
        case Copy(source, _):
            return (source,)
        case Switch(selector, _, _):
            return (selector,)
        case _:
            return ()


def writes_of(node: Node) -> tuple[str, ...]:
    """Return the variables that `node` itself sets, without the nodes inside it."""
    match node:
        case StreamIn(_, variable):
            return (variable,)
        case Execute(_, _, outputs):
            return tuple(outputs.values())
        case Copy(_, target):
            return (target,)
        case _:
            return ()


def to_document(node: Node) -> dict[str, Any]:
    """Return the map that stands for `node` in an executable."""
    match node:
        case Steps(nodes):
            return {"do": "sequence", "nodes": [to_document(n) for n in nodes]}
        case StreamIn(handle, variable):
            return {"do": "stream_in", "handle": handle, "variable": variable}
        case Execute(graph, inputs, outputs):
            return {
                "do": "execute",
                "graph": graph,
                "inputs": dict(inputs),
                "outputs": dict(outputs),
            }
        case StreamOut(variable, handle):
            return {"do": "stream_out", "variable": variable, "handle": handle}
        case Copy(source, target):
            return {"do": "copy", "source": source, "target": target}
        case Repeat(count, body):
            return {"do": "repeat", "count": count, "body": to_document(body)}
        case Switch(selector, cases, default):
            return {
                "do": "switch",
                "selector": selector,
                "cases": [[n, to_document(c)] for n, c in sorted(cases.items())],
                "default": None if default is None else to_document(default),
            }
        case ProgramCall(program):
            return {"do": "call", "program": program}


class NodeReader:
    """Reads nodes from a document. It counts them and limits their depth."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def read(self, document: object, depth: int = 0) -> Node:
        """Return the node for `document`. Raises BadProgram if it is invalid."""
        self._left -= 1
        if self._left < 0:
            raise BadProgram(f"expected at most {MAX_NODES} nodes, got more")
        if depth > MAX_DEPTH:
            raise BadProgram(f"nodes are nested more than {MAX_DEPTH} deep")
        if not isinstance(document, dict):
            raise BadProgram(f"a node must be a map, got {_kind(document)}")
        do = document.get("do")
        reader = self._READERS.get(do) if isinstance(do, str) else None
        if reader is None:
            known = ", ".join(self._READERS)
            raise BadProgram(f"unknown kind of node {_short(do)}; expected {known}")
        try:
            return reader(self, document, depth + 1)
        except KeyError as missing:
            raise BadProgram(f"a {do} node lacks {missing}") from None

    def _sequence(self, doc: dict[str, Any], depth: int) -> Node:
        nodes = checked_list(doc["nodes"], "nodes of a sequence")
        return Steps(tuple(self.read(n, depth) for n in nodes))

    def _stream_in(self, doc: dict[str, Any], _: int) -> Node:
        return StreamIn(checked_name(doc["handle"]), checked_name(doc["variable"]))

    def _stream_out(self, doc: dict[str, Any], _: int) -> Node:
        return StreamOut(checked_name(doc["variable"]), checked_name(doc["handle"]))

    def _execute(self, doc: dict[str, Any], _: int) -> Node:
        return Execute(
            checked_name(doc["graph"]), _names(doc["inputs"]), _names(doc["outputs"])
        )

    def _copy(self, doc: dict[str, Any], _: int) -> Node:
        return Copy(checked_name(doc["source"]), checked_name(doc["target"]))

    def _repeat(self, doc: dict[str, Any], depth: int) -> Node:
        count = checked_int(doc["count"], 0, MAX_REPEAT, "count of a repeat")
        return Repeat(count, self.read(doc["body"], depth))

    def _switch(self, doc: dict[str, Any], depth: int) -> Node:
        cases: dict[int, Node] = {}
        for pair in checked_list(doc["cases"], "cases of a switch"):
            if not isinstance(pair, list) or len(pair) != 2:
                raise BadProgram("a case of a switch must be a number and a node")
            low, high = -_SELECTOR_RANGE, _SELECTOR_RANGE - 1
            number = checked_int(pair[0], low, high, "number of a case")
            if number in cases:
                raise BadProgram(f"a switch has case {number} twice")
            cases[number] = self.read(pair[1], depth)
        rest = doc["default"]
        default = None if rest is None else self.read(rest, depth)
        return Switch(checked_name(doc["selector"]), cases, default)

    def _call(self, doc: dict[str, Any], _: int) -> Node:
        return ProgramCall(checked_int(doc["program"], 0, 1 << 32, "program of a call"))

    _READERS: Mapping[str, Callable[[NodeReader, dict[str, Any], int], Node]] = {
        "sequence": _sequence,
        "stream_in": _stream_in,
        "execute": _execute,
        "stream_out": _stream_out,
        "copy": _copy,
        "repeat": _repeat,
        "switch": _switch,
        "call": _call,
    }


def checked_list(value: object, what: str) -> list[Any]:
    """Return `value` if it is a list."""
    if not isinstance(value, list):
        raise BadProgram(f"{what} must be a list, got {_kind(value)}")
    return value


def checked_int(value: object, low: int, high: int, what: str) -> int:
    """Return `value` if it is an integer from `low` to `high`."""
    if type(value) is not int:
        raise BadProgram(f"{what} must be an integer, got {_kind(value)}")
    if not low <= value <= high:
        raise BadProgram(f"{what} must be from {low} to {high}, got {value}")
    return value


def checked_name(value: object, what: str = "a name") -> str:
    """Return `value` if it is a string of acceptable length."""
    if not isinstance(value, str):
        raise BadProgram(f"{what} must be a string, got {_kind(value)}")
    if len(value) > MAX_NAME:
        raise BadProgram(
            f"{what} must have at most {MAX_NAME} characters, got {len(value)}"
        )
    return value


def _names(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadProgram(f"connections of an execute must be a map, got {_kind(value)}")
    return {checked_name(k): checked_name(v) for k, v in value.items()}


def _kind(value: object) -> str:
    return type(value).__name__


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
