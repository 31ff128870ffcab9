"""A folder of compiled programs, which later sessions load instead of compiling.

A file is a program in PopEF as `popir.export` writes it, with its weights, so it can be
served; a session takes the weights of its own Ir. An opaque blob describes the streams.
Unusable files are skipped. Files are renamed into place, so several processes may share
a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from popir.caching.fingerprint import NoFingerprint, fingerprint
from popir.errors import IrError
from popir.exchanges import Exchange, ExchangeStreams, RemoteLoad, RemoteStore
from popir.grouping import Collective, Groups
from popir.ir import Ir, IrTensor, Operator
from popir.remote import RemoteBuffer

if TYPE_CHECKING:
    from engine.programs import Executable
    from popef_io import Reader
    from popir.lowering.compile import Program

#: Called with the level and the text of a log line.
Tell: TypeAlias = Callable[[str, str], object]
#: Default for the most bytes of a folder (POPXL_CACHE_SIZE).
DEFAULT_SIZE = 10 << 30
#: Version of the format: it changes if equal programs compile to other executables.
VERSION = 2
BLOB = "popir.session"


@dataclass(frozen=True, slots=True)
class ProgramCache:
    """The programs of a folder, which is created when a program is stored."""

    folder: Path
    tell: Tell
    size: int = DEFAULT_SIZE
    """Most bytes of files; the least recently used are removed first."""
    preload: bool = False
    """Whether files are read whole before use."""

    def key(self, ir: Ir, **around: object) -> str | None:
        """Return the name of a program; None if it cannot be stored."""
        import onnxruntime

        versions = {"popir": VERSION, "onnxruntime": onnxruntime.__version__}
        try:
            return fingerprint(ir, {**versions, **around})
        except NoFingerprint:
            return None

    def load(self, key: str, ir: Ir) -> tuple[Program, Path] | None:
        """Return the program `key` and its file; None if no usable file is there."""
        for path in self._candidates(key):
            program = self._read(path, key, ir)
            if program is not None:
                with contextlib.suppress(OSError):
                    os.utime(path)  # mark the file as used
                return program, path
        return None

    def store(self, key: str, ir: Ir, program: Program) -> None:
        """Write a program; log a warning if that cannot be done."""
        from popir.export import write_program

        path = self.folder / f"{key}.popef"
        about = json.dumps({"key": key, **_encoded(program)}).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_program(ir, program, path, key, {BLOB: about})
            self._make_room(path)
        except (OSError, IrError) as error:
            self.tell("WARN", f"The program could not be cached in {path}: {error}")

    def _candidates(self, key: str) -> Iterator[Path]:
        own = self.folder / f"{key}.popef"
        if own.is_file():
            yield own
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.glob("*.popef")):
                # A decimal name is the key of another program.
                if path != own and not path.stem.isdecimal():
                    yield path

    def _read(self, path: Path, key: str, ir: Ir) -> Program | None:
        from popef_io import PopefError, Reader

        try:
            if self.preload:
                self.tell("DEBUG", f"Performing preload of popef file {path}")
                path.read_bytes()
                self.tell("DEBUG", f"Completed preload of popef file {path}")
            with Reader() as reader:
                reader.parse_file(path)
                return self._program(reader, path, key, ir)
        except (PopefError, OSError, ValueError, LookupError, TypeError) as error:
            self.tell(
                "WARN",
                f"Ignoring cache file because it does not contain a program that can "
                f"be read: {path}: {error}",
            )
            return None

    def _program(self, reader: Reader, path: Path, key: str, ir: Ir) -> Program | None:
        from engine.programs import Executable
        from popir.export import EXECUTABLE

        blobs = {blob.name: blob for blob in reader.opaque_blobs}
        if BLOB not in blobs:
            raise ValueError("the file has no compiled session")
        about = json.loads(bytes(blobs[BLOB].blob.payload()))
        found = str(about["key"])
        if found != key:
            level = "WARN" if path.stem == key else "DEBUG"
            self.tell(level, f"Cache file hash did not match the IR hash: {path}")
            return None
        self.tell(
            "DEBUG", f"PopEF file inferred to have hash '{key}' has been found: {path}"
        )
        if EXECUTABLE in blobs:
            content = bytes(blobs[EXECUTABLE].blob.payload())
        else:
            (executable,) = reader.executables
            content = bytes(executable.raw())
        return _decoded(about, Executable.decode(content), ir)

    def _make_room(self, newest: Path) -> None:
        """Remove the least recently used files if there are too many."""
        found = []
        for path in self.folder.glob("*.popef"):
            if path.stem.isdecimal() and path != newest:
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
        total = newest.stat().st_size + sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.size:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def _encoded(program: Program) -> dict[str, Any]:
    """Return the description of the Ir in a program, by names."""
    exchanges: dict[Exchange, int] = {}

    def number(exchange: Exchange) -> int:
        return exchanges.setdefault(exchange, len(exchanges))

    sent = {h: [number(e), part] for h, (e, part) in program.ends.sent.items()}
    received = {h: number(e) for h, e in program.ends.received.items()}
    return {
        "variables": [t.id for t in program.variables],
        "written": sorted(t.id for t in program.written),
        "remote": [t.id for t in program.remote],
        "inputs": {h: t.id for h, t in program.inputs.items()},
        "outputs": {h: t.id for h, t in program.outputs.items()},
        "scales": {h: [t.graph.id, t.id] for h, t in program.scales.items()},
        "prints": {h: _place_of(op) for h, op in program.prints.items()},
        "sent": sent,
        "received": received,
        "exchanges": [_exchange_encoded(e) for e in exchanges],
        "replicas": program.replicas,
        "transfers": program.metadata.device_iterations,
    }


def _place_of(operator: Operator) -> list[Any]:
    return [operator.graph.id, operator.graph.operators.index(operator)]


def _exchange_encoded(exchange: Exchange) -> dict[str, Any]:
    if isinstance(exchange, Collective):
        return {
            "is": "collective",
            "what": exchange.what,
            "operator": exchange.operator,
            "assignment": exchange.groups.assignment,
            "stride": exchange.groups.stride,
            "op": exchange.op,
            "axis": exchange.axis,
            "shape": exchange.shape,
        }
    kind = "load" if isinstance(exchange, RemoteLoad) else "store"
    return {"is": kind, "buffer": exchange.buffer.number, "offset": exchange.offset}


def _exchange_decoded(
    given: Mapping[str, Any], buffers: Mapping[int, RemoteBuffer]
) -> Exchange:
    if given["is"] == "collective":
        groups = Groups(tuple(given["assignment"]), given["stride"])
        return Collective(
            given["what"],
            given["operator"],
            groups,
            given["op"],
            given["axis"],
            tuple(given["shape"]),
        )
    kind = RemoteLoad if given["is"] == "load" else RemoteStore
    return kind(buffers[given["buffer"]], given["offset"])


def _decoded(about: Mapping[str, Any], executable: Executable, ir: Ir) -> Program:
    from popef_io import Metadata
    from popir.lowering.compile import Program, metadata_of

    tensors = ir.main.tensors
    buffers = {b.number: b for b in _buffers(ir)}
    exchanges = [_exchange_decoded(each, buffers) for each in about["exchanges"]]

    def named(ids: Mapping[str, str]) -> dict[str, IrTensor]:
        return {handle: tensors[id_] for handle, id_ in ids.items()}

    program = Program(
        executable=executable,
        metadata=Metadata(""),
        variables=tuple(tensors[id_] for id_ in about["variables"]),
        written=frozenset(tensors[id_] for id_ in about["written"]),
        inputs=named(about["inputs"]),
        outputs=named(about["outputs"]),
        prints={
            handle: ir.graphs[graph].operators[at]
            for handle, (graph, at) in about["prints"].items()
        },
        functions={},
        scales={
            handle: ir.graphs[graph].tensors[id_]
            for handle, (graph, id_) in about["scales"].items()
        },
        remote=tuple(tensors[id_] for id_ in about["remote"]),
        ends=ExchangeStreams(
            {h: (exchanges[n], part) for h, (n, part) in about["sent"].items()},
            {h: exchanges[n] for h, n in about["received"].items()},
        ),
        replicas=about["replicas"],
    )
    transfers = int(about["transfers"])
    metadata = metadata_of(ir, program, about["variables"], transfers)
    return replace(program, metadata=metadata)


def _buffers(ir: Ir) -> Iterator[RemoteBuffer]:
    """Yield the remote buffers of operators and variables."""
    for tensor in ir.main.tensors.values():
        if tensor.placement.buffer is not None:
            yield tensor.placement.buffer
    for graph in ir.reachable():
        for operator in graph.operators:
            for each in (operator, *operator.attributes.get("parts", ())):
                if "buffer" in each.attributes:
                    yield each.attributes["buffer"]
