"""Result of `popgate pack`: the code of a model, and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from app.cli.errors import CommandError

#: The name of the input of models that take one matrix.
X = "x"
NUMBERS = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
#: Types of columns, as MLflow names them.
COLUMNS = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}


@dataclass(frozen=True)
class Packed:
    """Parts of a `model.py`: imports, loading, and the code of a call.

    `requires` are modules. `takes_columns` means that a call receives its inputs as the
    mapping `columns`; `comments` follow inputs. `example` are fitting values by input.
    """

    imports: str
    load: str
    call: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    requires: tuple[str, ...]
    is_code: bool = False
    batching: bool = True
    notes: tuple[str, ...] = ()
    takes_columns: bool = False
    comments: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)

    def source(self, kind: str, file: str) -> str:
        """Return the text of `model.py`."""
        trust = ""
        if self.is_code:
            trust = "        # Loading runs code in the file: trust it like this one.\n"
        names = "/, **columns" if self.takes_columns else ", ".join(self.inputs)
        inputs = self._lines() if self.takes_columns else table_of(self.inputs)
        return (
            f'"""{file}, served. Made by `popgate pack {kind}`; yours to edit."""\n\n'
            f"{self.imports}\n\n\nclass Packed:\n"
            f"    inputs = {inputs}\n"
            f"    outputs = {table_of(self.outputs)}\n"
            f"    batching = {self.batching}  # rows do not depend on each other\n\n"
            f"    def load(self, context):\n{trust}"
            f"        file = context.folder / {file!r}\n        {self.load}\n\n"
            f"    def __call__(self, {names}):\n        {self.call}\n"
        )

    def config(self, requirements: list[str]) -> str:
        """Return the text of `config.toml`."""
        wanted = ", ".join(f'"{name}"' for name in requirements)
        lines = [f"requirements = [{wanted}]\n"]
        if self.example:
            lines.append("\n[example]\n")
            lines += [
                f"{quoted(name)} = {json.dumps(value, ensure_ascii=False)}\n"
                for name, value in self.example.items()
            ]
        return "".join(lines)

    def _lines(self) -> str:
        """Return the inputs with one on each line."""
        lines = []
        for name, kind in self.inputs.items():
            comment = self.comments.get(name)
            said = f"  # {comment}" if comment else ""
            lines.append(f"        {quoted(name)}: {quoted(kind)},{said}\n")
        return "{\n" + "".join(lines) + "    }"


def table_of(tensors: Mapping[str, str]) -> str:
    """Return tensors as Python code: a dictionary of name and type."""
    return (
        "{" + ", ".join(f"{quoted(k)}: {quoted(v)}" for k, v in tensors.items()) + "}"
    )


def library(module: str, packages: str = "") -> Any:
    """Return an imported module. Raises `CommandError` if it is not installed.

    `packages` are the packages that contain it, if their names differ.
    """
    try:
        return import_module(module)
    except ImportError as error:
        msg = f"{error}; install it with pip install {packages or module}"
        raise CommandError(msg) from None


def quoted(text: str) -> str:
    """Return a string as Python code."""
    return json.dumps(text, ensure_ascii=False)
