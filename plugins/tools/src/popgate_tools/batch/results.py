"""The file of results, which records the finished rows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson

from app.cli.errors import EXIT_USAGE, CommandError
from popgate_client import Array
from popgate_tools.batch.rows import InputRow


class ResultsFile:
    """A line of JSON for each row with a result, in the order of completion.

    Each line is one write, so a killed run leaves whole lines and at most one partial
    line, which the next run removes. `FILE.errors.jsonl` has the failed rows of this
    run. `FILE.batch.json` names their source.
    """

    def __init__(self, place: Path, source: Path, model: str, version: str) -> None:
        self.done: set[int] = set()
        self.failed = 0
        self.errors = place.with_name(f"{place.name}.errors.jsonl")
        self._note = place.with_name(f"{place.name}.batch.json")
        if not place.parent.is_dir():
            raise CommandError(f"--output {place}: no such folder", EXIT_USAGE)
        if place.exists() and not place.is_file():
            raise CommandError(f"--output {place}: not a regular file", EXIT_USAGE)
        self._check_note(place, source, model, version)
        self._file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._read(place)
        self.errors.unlink(missing_ok=True)

    def _check_note(self, place: Path, source: Path, model: str, version: str) -> None:
        stat = source.stat()
        said = {
            "model": model,
            "version": version,
            "input": str(source.resolve()),
            "changed": None if source.is_dir() else stat.st_mtime_ns,
        }
        if place.exists() and place.stat().st_size:
            try:
                before = json.loads(self._note.read_text())
            except (OSError, ValueError):
                before = None
            if before != said:
                msg = (
                    f"--output {place} has the results of another model or of "
                    "an --input that has changed; remove the file, or name "
                    "another"
                )
                raise CommandError(msg, EXIT_USAGE)
        self._note.write_text(json.dumps(said) + "\n")

    def _read(self, place: Path) -> None:
        end = 0
        with place.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    self.done.add(int(orjson.loads(line)["row"]))
                except (ValueError, KeyError, TypeError):
                    msg = (
                        f"--output {place} is not a file of results of popgate "
                        "batch; name another"
                    )
                    raise CommandError(msg, EXIT_USAGE) from None
                end += len(line)
        os.ftruncate(self._file, end)

    def add(self, row: InputRow, outputs: Mapping[str, Array]) -> None:
        """Add a row's result."""
        self._add(row, {"outputs": _values(outputs)})

    def add_all(self, row: InputRow, responses: Sequence[Mapping[str, Array]]) -> None:
        """Add the result of a row with any number of responses."""
        self._add(row, {"responses": [_values(outputs) for outputs in responses]})

    def _add(self, row: InputRow, result: dict[str, Any]) -> None:
        self._write(self._file, {"row": row.number, **_kept(row), **result})
        self.done.add(row.number)

    def fail(self, row: InputRow, error: str, code: str) -> None:
        """Record why a row failed."""
        document = {"row": row.number, **_kept(row), "error": error, "code": code}
        file = os.open(self.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._write(file, document)
        finally:
            os.close(file)
        self.failed += 1

    @staticmethod
    def _write(file: int, document: dict[str, Any]) -> None:
        try:
            line = _dumps(document)
        except TypeError:  # a lone surrogate, or a whole number over 64 bits
            line = _dumps({name: _writable(each) for name, each in document.items()})
        while line:
            line = line[os.write(file, line) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)


def _dumps(value: Any) -> bytes:
    return orjson.dumps(
        value,
        option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE,
        default=str,
    )


def _writable(value: Any) -> Any:
    """Return a value, or its string if JSON of the results cannot hold it."""
    try:
        _dumps(value)
    except TypeError:
        return str(value).encode(errors="backslashreplace").decode()
    return value


def _kept(row: InputRow) -> dict[str, Any]:
    return {
        name: _named(value) if isinstance(value, float) else value
        for name, value in row.kept.items()
    }


def _values(outputs: Mapping[str, Array]) -> dict[str, Any]:
    return {name: _plain(array) for name, array in outputs.items()}


def _plain(array: Array) -> Any:
    """Return values of one row: without the dimension of the batch."""
    if array.ndim and array.shape[0] == 1:
        array = array.reshape(array.shape[1:])
    if array.dtype == object:
        decode = np.vectorize(lambda b: b.decode(errors="backslashreplace"), otypes="O")
        return np.asarray(decode(array)).tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        named = np.empty(array.size, object)
        named[:] = [_named(value) for value in array.reshape(-1)]
        return named.reshape(array.shape).tolist()
    return np.ascontiguousarray(array) if array.shape else array[()]


def _named(value: Any) -> Any:
    """Return a number, or the string that stands for NaN or infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
