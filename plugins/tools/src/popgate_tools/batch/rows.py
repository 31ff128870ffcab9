"""Rows of files as inputs of a model."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from app.cli.errors import EXIT_USAGE, CommandError

#: Datatype and shape of each input, as metadata have them.
Takes: TypeAlias = "Mapping[str, tuple[str, list[int]]]"
#: The inputs that a request may leave out.
Optional: TypeAlias = "frozenset[str]"

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")

#: The most characters of a cell in .csv. Python's own limit of 128 KiB is too small for
#: long texts.
_LONGEST_CELL = 1 << 30


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row: its number from 0, its inputs, and the columns copied to the results.

    `problem` says why it has no inputs.
    """

    number: int
    inputs: Mapping[str, Any]
    kept: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows of a file: their number, and how to read them for a model."""

    count: int
    read: Callable[[Takes, Optional], Iterator[InputRow]]
    are_files: bool = False


@contextlib.contextmanager
def open_rows(
    source: Path, keep: Sequence[str], columns: Sequence[str] = ()
) -> Iterator[InputRows]:
    """Open the rows of a file or folder. Raises `CommandError` for other kinds of
    files.

    `columns` name the columns of inputs, as ``[INPUT=]COLUMN``.
    """
    if source.is_dir():
        if columns or set(keep) - {"file"}:
            msg = f"--input {source}: a folder has no columns for --keep and --column"
            raise CommandError(msg, EXIT_USAGE)
        yield _images(source)
        return
    kinds = {".csv": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl, ".parquet": _parquet}
    if source.suffix not in kinds:
        msg = f"--input {source}: expected .csv, .jsonl, .parquet or a folder"
        raise CommandError(msg, EXIT_USAGE)
    if not source.is_file():
        raise CommandError(f"--input {source}: no such file", EXIT_USAGE)
    yield kinds[source.suffix](source, keep, columns)


@contextlib.contextmanager
def _readable(source: Path) -> Iterator[None]:
    """Raise `CommandError` if the file is no text, or no CSV."""
    try:
        yield
    except UnicodeDecodeError as e:
        msg = f"--input {source}: not UTF-8: {e.reason}, byte {e.object[e.start]:#x}"
        raise CommandError(msg, EXIT_USAGE) from None
    except csv.Error as e:
        raise CommandError(f"--input {source}: {e}", EXIT_USAGE) from None


def _check_columns(source: Path, names: Sequence[str], keep: Sequence[str]) -> None:
    """Raise `CommandError` if two columns have the same name, of which one is lost, or
    if a column to keep is missing.
    """
    ((name, count),) = Counter(filter(None, names)).most_common(1) or [("", 0)]
    if count > 1:
        msg = f"--input {source}: the table has the column {name!r} twice"
        raise CommandError(msg, EXIT_USAGE)
    if names and (missing := [name for name in keep if name not in names]):
        msg = f"--keep {missing[0]}: the columns of {source} are {', '.join(names)}"
        raise CommandError(msg, EXIT_USAGE)


def _csv(source: Path, keep: Sequence[str], columns: Sequence[str]) -> InputRows:
    def records() -> Iterator[dict[str, Any]]:
        with source.open(newline="", encoding="utf-8-sig") as file, _readable(source):
            reader = csv.DictReader(file)
            _check_columns(source, reader.fieldnames or (), keep)
            yield from reader

    csv.field_size_limit(_LONGEST_CELL)

    return InputRows(
        sum(1 for _ in records()), _reader(records, keep, columns, texts=True)
    )


def _jsonl(source: Path, keep: Sequence[str], columns: Sequence[str]) -> InputRows:
    def records() -> Iterator[Any]:
        with source.open(encoding="utf-8") as file, _readable(source):
            for line in file:
                if line.strip():
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError) as e:
                        record = e
                    yield record

    return InputRows(sum(1 for _ in records()), _reader(records, keep, columns))


def _parquet(source: Path, keep: Sequence[str], columns: Sequence[str]) -> InputRows:
    try:
        from pyarrow import parquet
    except ImportError:
        msg = "reading .parquet needs pyarrow: pip install 'popgate[parquet]'"
        raise CommandError(msg, EXIT_USAGE) from None
    try:
        file = parquet.ParquetFile(source)
    except (OSError, ValueError) as e:
        raise CommandError(f"--input {source}: {e}", EXIT_USAGE) from None
    _check_columns(source, file.schema_arrow.names, keep)

    def records() -> Iterator[dict[str, Any]]:
        for part in file.iter_batches(batch_size=1024):
            yield from part.to_pylist()

    return InputRows(file.metadata.num_rows, _reader(records, keep, columns))


def _reader(
    records: Callable[[], Iterator[Any]],
    keep: Sequence[str],
    columns: Sequence[str],
    *,
    texts: bool = False,
) -> Callable[[Takes, Optional], Iterator[InputRow]]:
    def read(takes: Takes, optional: Optional) -> Iterator[InputRow]:
        for number, record in enumerate(records()):
            if isinstance(record, Exception):
                yield InputRow(number, {}, problem=f"not JSON: {record}")
                continue
            if not isinstance(record, dict):
                record = {next(iter(takes)): record} if len(takes) == 1 else {}
            inner = record.get("inputs")
            values = (
                inner if isinstance(inner, dict) and "inputs" not in takes else record
            )
            kept = {name: record.get(name) for name in keep}
            try:
                if None in values:  # a comma in a number, perhaps
                    raise ValueError("the row has more cells than the header")
                named = _renamed(values, takes, columns)
                inputs = _inputs(named, takes, keep, optional, texts=texts)
            except (ValueError, TypeError) as e:
                yield InputRow(number, {}, kept, str(e))
            else:
                yield InputRow(number, inputs, kept)

    return read


def _renamed(
    record: Mapping[str, Any], takes: Takes, columns: Sequence[str]
) -> Mapping[str, Any]:
    """Return a record whose columns have the names of the inputs that they fill. Raises
    ValueError.
    """
    if not columns:
        return record
    found = {}
    for given in columns:
        name, _, column = given.rpartition("=")
        name = name or next(iter(takes))
        if name not in takes:
            raise ValueError(
                f"--column: the model has no input {name}; its inputs are "
                f"{', '.join(takes)}"
            )
        if column not in record:
            raise ValueError(
                f"no column {column} for --column; the columns are {', '.join(record)}"
            )
        found[name] = record[column]
    return found


def _inputs(
    record: Mapping[str, Any],
    takes: Takes,
    keep: Sequence[str],
    optional: Optional,
    *,
    texts: bool,
) -> dict[str, Any]:
    """Return the columns that have the inputs' names. If there are none, all columns
    are the elements of the only input.
    """
    read: Callable[[Any, str], Any] = _cell if texts else _value
    absent = [name for name in takes if not _is_given(record, name, optional)]
    if not set(absent) - optional and len(absent) < len(takes):
        return {
            name: read(record[name], datatype)
            for name, (datatype, _) in takes.items()
            if name not in absent
        }
    missing = ", ".join(name for name in absent if name not in optional)
    values = [value for name, value in record.items() if name not in keep]
    if len(takes) != 1 or not values:
        raise ValueError(
            f"no column {missing} for the model's inputs; the columns are "
            f"{', '.join(record)}; --column names another one"
        )
    ((name, (datatype, shape)),) = takes.items()
    cells = [read(value, datatype) for value in values]
    if shape and shape[-1] not in (-1, len(cells)):
        msg = (
            f"the file has {len(cells)} columns, but input {name} takes rows of "
            f"{shape[-1]}"
        )
        raise ValueError(msg)
    return {name: cells}


def _is_given(record: Mapping[str, Any], name: str, optional: Optional) -> bool:
    """Return whether a record has a value for an input.

    An empty cell of an optional input is not one.
    """
    empty = name in optional and record.get(name) in (None, "")
    return name in record and not empty


def _value(value: Any, datatype: str) -> Any:
    """Return a value of .jsonl or .parquet. As an empty cell of .csv, null is NaN for a
    float and the empty string for a string.
    """
    if datatype != "BYTES" and not datatype.startswith(("FP", "BF")):
        return value
    if isinstance(value, list):
        return [_value(item, datatype) for item in value]
    gap = "" if datatype == "BYTES" else math.nan
    return gap if value is None else value


def _cell(text: str | None, datatype: str) -> Any:
    """Return a cell of a .csv file: a string, a number, or a list in JSON."""
    if text is None:
        raise ValueError("the row has too few cells")
    if datatype == "BYTES" and not text.startswith("["):
        return text
    if not text.strip() and datatype.startswith(("FP", "BF")):
        return math.nan
    if datatype == "BOOL" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if datatype == "BYTES":
            return text
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a value of {datatype}") from None


def _images(folder: Path) -> InputRows:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGES)
    if not files:
        raise CommandError(f"--input {folder}: the folder has no images", EXIT_USAGE)

    def read(takes: Takes, optional: Optional) -> Iterator[InputRow]:
        if len(takes) != 1:
            msg = (
                "a folder of images requires a model with one input; this model "
                f"has {', '.join(takes)}"
            )
            raise CommandError(msg, EXIT_USAGE)
        ((name, (datatype, shape)),) = takes.items()
        if datatype == "BYTES":  # the model or the server decodes the file
            yield from _as_they_are(folder, files, name)
            return
        try:
            from PIL import Image
        except ImportError:
            msg = "reading images needs pillow: pip install 'popgate[images]'"
            raise CommandError(msg, EXIT_USAGE) from None
        mode, size, first = _form(shape)
        for number, file in enumerate(files):
            kept = {"file": file.relative_to(folder).as_posix()}
            try:
                with Image.open(file) as image:
                    fitting = image.convert(mode)
                    if size is not None:
                        fitting = fitting.resize(size)
                    pixels = np.asarray(fitting)
            except (OSError, ValueError, Image.DecompressionBombError) as e:
                yield InputRow(number, {}, kept, str(e))
                continue
            pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
            pixels = pixels.transpose(2, 0, 1) if first else pixels
            if datatype.startswith(("FP", "BF")):
                pixels = pixels.astype(np.float32) / 255
            # Add the dimension of the batch, up to the model's number of dimensions.
            yield InputRow(number, {name: pixels.reshape(_padded(pixels, shape))}, kept)

    return InputRows(len(files), read, are_files=True)


def _as_they_are(folder: Path, files: Sequence[Path], name: str) -> Iterator[InputRow]:
    """Return the bytes of each file, for an input that takes files."""
    for number, file in enumerate(files):
        kept = {"file": file.relative_to(folder).as_posix()}
        try:
            yield InputRow(number, {name: [file.read_bytes()]}, kept)
        except OSError as e:
            yield InputRow(number, {}, kept, str(e))


def _form(shape: list[int]) -> tuple[str, tuple[int, int] | None, bool]:
    """Return mode, width and height, and whether the colours come first."""
    channels = {1: "L", 3: "RGB", 4: "RGBA"}
    if len(shape) >= 3 and shape[-3] in channels and shape[-1] not in (3, 4):
        mode, height, width, first = channels[shape[-3]], shape[-2], shape[-1], True
    elif len(shape) >= 3 and shape[-1] in channels:
        mode, height, width, first = channels[shape[-1]], shape[-3], shape[-2], False
    else:
        msg = (
            f"the model's input has shape {shape}; an image needs a dimension of "
            "1, 3 or 4 channels"
        )
        raise CommandError(msg, EXIT_USAGE)
    return mode, (width, height) if width > 0 and height > 0 else None, first


def _padded(pixels: np.ndarray, shape: list[int]) -> tuple[int, ...]:
    return (1,) * (len(shape) - pixels.ndim) + pixels.shape
