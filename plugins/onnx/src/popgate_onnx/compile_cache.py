"""ONNX files of the repository, compiled when they are first loaded and kept.

The key of a compiled file is a digest of all its sources: the ONNX file, its external
data files, the compile options, and the versions of the compiler and of ONNX Runtime.
So no file in the cache is ever stale, and deleting a file is always safe.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib import metadata
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from app.about import VERSION
from app.repository.compilers import NO_CHANGES, GraphChanges
from engine import Array, InvalidModel
from popgate_onnx.graph_changes import (
    apply_changes,
    are_of_the_graph,
    changes_of,
    input_defaults,
    row_shapes,
)

if TYPE_CHECKING:
    from popgate_onnx.compiler import Compilations, CompileOptions, Progress

logger = logging.getLogger(__name__)

_FORMAT = "popgate-compiled-2"
# Errors of a full or read-only disk. Another folder may work.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class OnnxCompileCache:
    """Compiled models by the digest of their sources. Thread-safe.

    If two processes compile the same model at the same time, both do the work. They end
    with the same file, because a finished file is renamed into its place. A compilation
    is limited to `seconds` and to `memory` bytes (0: three quarters of the machine's).
    A model that exceeds a limit fails.
    """

    def __init__(self, folder: Path, seconds: float = 600.0, memory: int = 0) -> None:
        self._wanted = folder
        self._folder: Path | None = None
        self._limits = seconds, memory
        self._lock = threading.Lock()
        self._compilations: Compilations | None = None
        self._closed = False

    def find(self, source: Path, changes: GraphChanges = NO_CHANGES) -> Path | None:
        """Return the compiled file of an ONNX file, if it exists.

        Raises as `popef_for`.
        """
        target, _ = self._place(source, changes)
        return target if target.is_file() else None

    def popef_for(self, source: Path, changes: GraphChanges = NO_CHANGES) -> Path:
        """Return the compiled file of an ONNX file; compile it if it does not exist.

        `changes` are applied to the model. Blocks while another process compiles the
        model. So the file can neither exceed the limits nor crash this process. Raises
        the errors of `compile_model`, ValueError for changes that do not fit, and
        OSError for a file that cannot be read or written.
        """
        target, options = self._place(source, changes)
        if target.is_file():
            logger.debug(
                "%s: using the compiled file of an earlier start, %s",
                source.name,
                target,
            )
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(target)  # records its use for `popgate cache`
            return target
        logger.info("%s: compiling", source.name)
        try:
            self._compile(source, target, changes, options)
        except OSError as e:
            if e.errno not in _NO_ROOM or not target.is_relative_to(self._wanted):
                raise
            target = self._fall_back(e) / target.relative_to(self._wanted)
            self._compile(source, target, changes, options)
        return target

    def _compile(
        self, source: Path, target: Path, changes: GraphChanges, options: CompileOptions
    ) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        job = str(source), str(target), asdict(changes), options.to_message()
        self._running().run(compile_into, *job)

    def close(self) -> None:
        """End running compilations, and refuse new ones from now on."""
        self._closed = True
        if self._compilations is not None:
            self._compilations.close()

    def _running(self) -> Compilations:
        from popgate_onnx.compiler import Compilations, CompileLimits

        with self._lock:
            if self._compilations is None:
                self._compilations = Compilations(CompileLimits(*self._limits))
        if self._closed:
            self._compilations.close()
        return self._compilations

    def _place(
        self, source: Path, changes: GraphChanges
    ) -> tuple[Path, CompileOptions]:
        """Return the path of the compiled file and the options for compiling."""
        # The compiler and its imports take a tenth of a second and tens of MiB, and
        # most repositories hold compiled models.
        from popgate_onnx.compiler import CompileOptions

        options = CompileOptions(ragged=dict(changes.ragged))
        if changes.counts_rows and not are_of_the_graph(changes):
            # The data is not loaded, because a change of names does not need it.
            shapes = row_shapes(changes, _load(source, load_external_data=False))
            options = replace(options, shapes=shapes)
        key = repr(options) + (repr(changes) if are_of_the_graph(changes) else "")
        key = _digest(source, key)
        name = Path(key[:2], f"{key}.popef")
        if (self._wanted / name).is_file():
            return self._wanted / name, options
        return self._usable_folder() / name, options

    def defaults(self, source: Path, names: Collection[str]) -> dict[str, Array | None]:
        """Return the defaults of the inputs `names` that a request may omit.

        None stands for an input that the model does not use. Raises the errors of
        `popef_for`.
        """
        return input_defaults(_load(source), names) if names else {}

    def _usable_folder(self) -> Path:
        """Return the folder of the cache, or a temporary folder if the cache is
        read-only.
        """
        if self._folder is None:
            try:
                self._wanted.mkdir(parents=True, exist_ok=True)
                if not os.access(self._wanted, os.W_OK | os.X_OK):
                    raise PermissionError(f"{self._wanted} is not writable")
                self._folder = self._wanted
            except OSError as e:
                return self._fall_back(e)
        return self._folder

    def _fall_back(self, why: OSError) -> Path:
        """Return a temporary folder, where compiled models go from now on."""
        with self._lock:
            if self._folder is None or self._folder == self._wanted:
                self._folder = Path(mkdtemp(prefix="popgate-cache-"))
                # The folder is removed with this object, at the latest at exit.
                weakref.finalize(self, shutil.rmtree, self._folder, True)
                logger.warning("compiled models go to %s: %s", self._folder, str(why))
            return self._folder

    def __repr__(self) -> str:
        return f"<OnnxCompileCache {self._folder or self._wanted}>"


def compile_into(
    source_name: str,
    target: str,
    changes_message: Mapping[str, Any],
    options_message: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Compile an ONNX file with changes. Runs in the process that compiles."""
    from popgate_onnx.compiler import CompileOptions, compile_model

    source = Path(source_name)
    changes = changes_of(changes_message)
    if not are_of_the_graph(changes):
        options = CompileOptions.from_message(options_message)
        compile_model(source, target, options, progress)
        return
    try:
        model = _load(source)  # with its external data
        inputs, outputs = apply_changes(changes, model)
    except ValueError as e:
        raise InvalidModel(str(e)) from None
    ragged = dict(changes.ragged)
    if changes.format:  # the format names all possible inputs
        there = {value.name for value in model.graph.input}
        ragged = {name: pad for name, pad in ragged.items() if name in there}
    options = CompileOptions(
        name=source.stem, inputs=inputs, outputs=outputs, ragged=ragged
    )
    compile_model(model, target, options, progress)


def _check_regular(source: Path) -> None:
    if not source.is_file():  # reading a pipe would block
        raise InvalidModel(f"{source.name} is not a regular file")


def _digest(source: Path, options: str) -> str:
    _check_regular(source)
    digest = hashlib.sha256()
    onnxruntime = metadata.version("onnxruntime")
    digest.update(f"{_FORMAT}\n{VERSION}\n{onnxruntime}\n{options}\n".encode())
    for path in (source, *external_files(source)):
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def external_files(source: Path) -> list[Path]:
    """Return the existing data files that an ONNX file refers to, beside it, sorted.

    The compiler checks which files a model may refer to; this function only reads them.
    """
    model = _load(source, load_external_data=False)
    in_functions = (node for each in model.functions for node in each.node)
    tensors = chain(_tensors(model.graph), _tensors_of(in_functions))
    names = {
        entry.value
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location" and "\0" not in entry.value
    }
    folder = source.parent.resolve()
    paths = sorted((folder / name).resolve() for name in names)
    return [p for p in paths if p.is_relative_to(folder) and p.is_file()]


def _load(source: Path, **options: Any) -> Any:
    """Return the model in a file.

    Raises OSError, and ValueError if the file holds none.
    """
    import onnx

    _check_regular(source)
    try:
        return onnx.load(source, **options)
    except OSError:
        raise
    except Exception as e:  # the parser's own error type depends on its implementation
        raise ValueError(
            f"{source.name} is not a valid ONNX model, or is truncated: {e}"
        ) from e


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _tensors_of(graph.node)


def _tensors_of(nodes: Iterable[Any]) -> Iterator[Any]:
    for attribute in (each for node in nodes for each in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _tensors(graph)
