"""Compilers of .onnx files, which a plugin provides; changes made before compiling."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NoReturn, Protocol

from app.config.reshape import Reshapes
from app.plugins import COMPILERS, plugin, plugin_names
from engine import Array, InvalidModel

#: The name of the compiler's entry point.
ONNX: Final = "onnx"


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """Changes to a model. `repr` is complete and stable: part of a cache key.

    If `counts_rows` is true, the first dimension of every input is declared to be the
    batch, even if the file does not say so. `optional` are inputs that remain inputs
    although the file has values for them (initializers). `format` is the plugin that
    changes the graph (`app.repository.formats`), by the JSON document `recipe`.
    `ragged` are inputs whose rows may have any length, with their padding values. The
    compiler checks that.
    """

    reshapes: Reshapes = field(default_factory=Reshapes)
    counts_rows: bool = False
    optional: tuple[str, ...] = ()
    format: str = ""
    recipe: str = ""
    ragged: tuple[tuple[str, float], ...] = ()


NO_CHANGES = GraphChanges()


class CompileCache(Protocol):
    """Compiled models by the digest of their sources. Thread-safe."""

    def find(self, source: Path, changes: GraphChanges = NO_CHANGES) -> Path | None:
        """Return the compiled file of an ONNX file, if it exists.

        Raises as `popef_for`.
        """

    def popef_for(self, source: Path, changes: GraphChanges = NO_CHANGES) -> Path:
        """Return the compiled file of an ONNX file; compile it if it does not exist.

        `changes` are applied to the model. Raises the engine's errors, ValueError for
        changes that do not fit, and OSError for a file that cannot be read or written.
        """

    def defaults(self, source: Path, names: Collection[str]) -> dict[str, Array | None]:
        """Return the defaults of the inputs `names` that a request may omit.

        None stands for an input that the model does not use. Raises the errors of
        `popef_for`.
        """

    def close(self) -> None:
        """End running compilations, and refuse new ones from now on."""


class Compiler(Protocol):
    """The object of the entry point `onnx` of the group `popgate.compilers`."""

    def cache(
        self, folder: Path, seconds: float = 600.0, memory: int = 0
    ) -> CompileCache:
        """Return a cache in a folder.

        A compilation is limited to `seconds` and to `memory` bytes (0: three quarters
        of the machine's).
        """

    def compile(self, source: Path, target: Path) -> None:
        """Compile an ONNX file in a process of its own. Raises the engine's errors."""


class NoCompiler:
    """Refuses to compile, because no plugin is installed that does."""

    def cache(
        self, folder: Path, seconds: float = 600.0, memory: int = 0
    ) -> CompileCache:
        return self

    def popef_for(self, source: Path, *_: object, **__: object) -> NoReturn:
        raise InvalidModel(
            f"{source.name} must be compiled, and no installed plugin compiles ONNX "
            f"models (entry point {ONNX} of {COMPILERS}); install one, or use a .popef "
            "file"
        )

    compile = find = defaults = popef_for

    def close(self) -> None:
        """Do nothing, because nothing runs."""


@cache
def compiler() -> Compiler:
    """Return the compiler of the installed plugin, or a `NoCompiler`."""
    found: Compiler | None = None
    if ONNX in plugin_names(COMPILERS):
        found = plugin(COMPILERS, ONNX)
    return found or NoCompiler()
