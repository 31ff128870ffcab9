"""An executable: what a device runs, and its form in a file.

The content of an executable blob is a msgpack map:

    format     1
    graphs     list of {name, model, digest, weights, opsets}
    variables  list of [name, data type, shape]; shape is null or dimensions, -1 free
    programs   list of [number, node], see `engine.programs.program`

`model` is a serialized ONNX ModelProto, `digest` its SHA-256. `weights` names the
initializers whose data comes from variables and not from the model. `opsets` states the
operator sets for which the graph was made. `docs/reference/executables.md` describes
all of it.

This module does not examine models. It checks a document in full before it trusts it:
every number has a bound, every name must refer to something, and programs may not call
themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from engine.errors import InvalidModel
from engine.programs.program import (
    BadProgram,
    Copy,
    Execute,
    Node,
    NodeReader,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
    checked_int,
    checked_list,
    checked_name,
    reads_of,
    to_document,
    walk,
    writes_of,
)
from engine.tensor import Buffer
from popef_io import DataType, TensorInfo

__all__ = (
    "FORMAT",
    "Copy",
    "Executable",
    "Execute",
    "Graph",
    "Node",
    "ProgramCall",
    "Repeat",
    "Steps",
    "StreamIn",
    "StreamOut",
    "Switch",
    "digest_of",
)

FORMAT = 1
MAX_GRAPHS = 1 << 16
MAX_VARIABLES = 1 << 20
MAX_PROGRAMS = 1 << 16
MAX_RANK = 64
MAX_STEPS = 1 << 40
"""Node executions that one run of a program may take, with repeats multiplied."""
MAX_CALLS = 8
"""The deepest nesting of calls between programs."""


def digest_of(model: bytes) -> str:
    """Return the SHA-256 of `model` in hexadecimal, for `Graph.digest`."""
    return hashlib.sha256(model).hexdigest()


@dataclass(frozen=True, slots=True)
class Graph:
    """One ONNX graph. It becomes one ONNX Runtime session, or one for each set of
    weights.
    """

    name: str
    model: bytes = field(repr=False)
    digest: str = ""
    """The SHA-256 of `model` in hexadecimal. It is computed if it is empty on
    construction.
    """
    weights: tuple[str, ...] = ()
    """Initializers whose data is not in `model`. An `Execute` must connect them to
    variables that only load programs write.
    """
    opsets: Mapping[str, int] = field(default_factory=dict)
    """Operator set versions by domain, `""` being ONNX's own."""

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", digest_of(self.model))


@dataclass(frozen=True, slots=True)
class Executable:
    """Graphs, variables and numbered programs. Immutable, safe to share."""

    graphs: Mapping[str, Graph] = field(default_factory=dict)
    variables: Mapping[str, TensorInfo] = field(default_factory=dict)
    programs: Mapping[int, Node] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the content of an executable blob. Equal executables give equal bytes.

        Raises InvalidModel if the parts do not fit together.
        """
        try:
            _check_references(self)
        except BadProgram as bad:
            raise InvalidModel(f"this executable is not valid: {bad}") from None
        document = {
            "format": FORMAT,
            "graphs": [
                {
                    "name": graph.name,
                    "model": graph.model,
                    "digest": graph.digest,
                    "weights": list(graph.weights),
                    "opsets": dict(sorted(graph.opsets.items())),
                }
                for graph in self.graphs.values()
            ],
            "variables": [
                [name, info.data_type.name, None if info.shape is None else info.shape]
                for name, info in self.variables.items()
            ],
            "programs": [
                [number, to_document(node)]
                for number, node in sorted(self.programs.items())
            ],
        }
        packed: bytes = msgpack.packb(document)
        return packed

    @classmethod
    def decode(cls, buffer: Buffer, *, check_digests: bool = True) -> Executable:
        """Return the executable that `encode` wrote. Does not keep `buffer`.

        `check_digests` compares each graph with its recorded digest (the option
        `check_package_hash` of Model Runtime). Raises InvalidModel for any other
        content: it must be a whole, valid executable of a format that this version
        knows.
        """
        try:
            return _read(buffer, check_digests)
        except BadProgram as bad:
            raise InvalidModel(f"not a valid executable: {bad}") from None

    def __repr__(self) -> str:
        return (
            f"<Executable graphs={list(self.graphs)} variables={len(self.variables)} "
            f"programs={list(self.programs)}>"
        )


def _read(buffer: Buffer, check_digests: bool) -> Executable:
    document = _unpack(buffer)
    version = document.get("format")
    if version != FORMAT or type(version) is not int:
        raise BadProgram(f"expected format {FORMAT}, got {version!r}")
    try:
        graphs = _read_graphs(document["graphs"], check_digests)
        variables = _read_variables(document["variables"])
        programs = _read_programs(document["programs"])
    except KeyError as missing:
        raise BadProgram(f"{missing} is missing") from None
    executable = Executable(graphs, variables, programs)
    _check_references(executable)
    return executable


def _unpack(buffer: Buffer) -> dict[str, Any]:
    try:
        # msgpack limits lengths to what the buffer can hold. So a small input never
        # makes it build anything large. Its nesting limit is far above ours.
        document = msgpack.unpackb(buffer, object_pairs_hook=_map_of)
    except (BadProgram, MemoryError):
        raise
    except Exception as error:  # msgpack's errors have no common base class
        reason = str(error) or type(error).__name__
        raise BadProgram(f"it is damaged, or not an executable ({reason})") from None
    if not isinstance(document, dict):
        raise BadProgram(f"expected a map, got {type(document).__name__}")
    return document


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise BadProgram("a map contains a key twice")
    return result


def _read_graphs(value: object, check_digests: bool) -> dict[str, Graph]:
    graphs: dict[str, Graph] = {}
    for item in _bounded(value, "graphs", MAX_GRAPHS):
        if not isinstance(item, dict):
            raise BadProgram("a graph must be a map")
        graph = Graph(
            name=checked_name(item["name"], "name of a graph"),
            model=_bytes(item["model"]),
            digest=checked_name(item["digest"], "digest of a graph") or "missing",
            weights=_weights(item["weights"]),
            opsets=_opsets(item["opsets"]),
        )
        if graph.name in graphs:
            raise BadProgram(f"two graphs have the name {graph.name!r}")
        if check_digests and graph.digest != digest_of(graph.model):
            raise BadProgram(
                f"graph {graph.name!r} has changed since it was recorded: its digest "
                f"is {digest_of(graph.model)[:16]}…, expected {graph.digest[:16]}…"
            )
        graphs[graph.name] = graph
    return graphs


def _weights(value: object) -> tuple[str, ...]:
    names = _bounded(value, "weights", MAX_VARIABLES)
    result = tuple(checked_name(n, "name of a weight") for n in names)
    if len(set(result)) != len(result):
        raise BadProgram("a graph lists a weight twice")
    return result


def _opsets(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > MAX_GRAPHS:
        raise BadProgram("opsets of a graph must be a map")
    return {
        checked_name(domain, "domain of an opset"): checked_int(
            version, 0, 1 << 31, "version of an opset"
        )
        for domain, version in value.items()
    }


def _read_variables(value: object) -> dict[str, TensorInfo]:
    variables: dict[str, TensorInfo] = {}
    for item in _bounded(value, "variables", MAX_VARIABLES):
        if not isinstance(item, list) or len(item) != 3:
            raise BadProgram("a variable must be a name, a data type and a shape")
        name = checked_name(item[0], "name of a variable")
        if name in variables:
            raise BadProgram(f"two variables have the name {name!r}")
        type_name = checked_name(item[1], "data type of a variable")
        if type_name not in DataType.__members__:
            raise BadProgram(f"variable {name!r} has unknown data type {type_name!r}")
        variables[name] = TensorInfo(_shape(item[2], name), DataType[type_name])
    return variables


def _shape(value: object, name: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    dims = _bounded(value, f"dimensions of {name!r}", MAX_RANK)
    what = f"a dimension of {name!r}"
    return tuple(checked_int(d, -1, (1 << 62) - 1, what) for d in dims)


def _read_programs(value: object) -> dict[int, Node]:
    programs: dict[int, Node] = {}
    reader = NodeReader()
    for item in _bounded(value, "programs", MAX_PROGRAMS):
        if not isinstance(item, list) or len(item) != 2:
            raise BadProgram("a program must be a number and a node")
        number = checked_int(item[0], 0, (1 << 32) - 1, "number of a program")
        if number in programs:
            raise BadProgram(f"two programs have the number {number}")
        programs[number] = reader.read(item[1])
    return programs


def _bounded(value: object, what: str, limit: int) -> list[Any]:
    items = checked_list(value, what)
    if len(items) > limit:
        raise BadProgram(f"expected at most {limit} {what}, got {len(items)}")
    return items


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise BadProgram("model of a graph must be bytes")
    return value


def _check_references(executable: Executable) -> None:
    """Check that every name exists, that programs do not call themselves, and that runs
    end.
    """
    for name, graph in executable.graphs.items():
        if name != graph.name:
            raise BadProgram(f"graph {graph.name!r} is listed as {name!r}")
    for number, program in executable.programs.items():
        for node in walk(program):
            for variable in (*reads_of(node), *writes_of(node)):
                if variable not in executable.variables:
                    raise BadProgram(
                        f"program {number} uses variable {variable!r}, "
                        "which does not exist"
                    )
            if isinstance(node, Execute):
                _check_execute(executable, node, number)
            elif (
                isinstance(node, ProgramCall)
                and node.program not in executable.programs
            ):
                raise BadProgram(
                    f"program {number} calls program {node.program}, "
                    "which does not exist"
                )
    _check_length(executable)


def _check_execute(executable: Executable, node: Execute, number: int) -> None:
    graph = executable.graphs.get(node.graph)
    if graph is None:
        raise BadProgram(
            f"program {number} executes graph {node.graph!r}, which does not exist"
        )
    missing = [name for name in graph.weights if name not in node.inputs]
    if missing:
        raise BadProgram(
            f"program {number} executes graph {node.graph!r} without its weight "
            f"{missing[0]!r}"
        )


def _check_length(executable: Executable) -> None:
    lengths = _Lengths(executable.programs)
    for number in executable.programs:
        lengths.of_program(number)


class _Lengths:
    """The numbers of steps that programs take. Each repeat counts.

    This is a class, because nested functions would refer to each other and keep the
    executable in memory until the next garbage collection.
    """

    def __init__(self, programs: Mapping[int, Node]) -> None:
        self._programs = programs
        self._known: dict[int, int] = {}
        self._open: list[int] = []

    def of_program(self, number: int) -> int:
        if number in self._known:
            return self._known[number]
        if number in self._open:
            raise BadProgram(f"program {number} calls itself")
        if len(self._open) > MAX_CALLS:
            raise BadProgram(f"programs call each other more than {MAX_CALLS} deep")
        self._open.append(number)
        self._known[number] = self._of(self._programs[number])
        self._open.pop()
        return self._known[number]

    def _of(self, node: Node) -> int:
        match node:
            case Steps(nodes):
                total = 1 + sum(map(self._of, nodes))
            case Repeat(count, body):
                total = 1 + count * self._of(body)
            case Switch(_, cases, default):
                inner = [*cases.values(), *([] if default is None else [default])]
                total = 1 + max(map(self._of, inner), default=0)
            case ProgramCall(program):
                total = 1 + self.of_program(program)
            case _:
                total = 1
        if total > MAX_STEPS:
            raise BadProgram(f"a run would take more than {MAX_STEPS} steps")
        return total
