"""Estimators and pipelines of scikit-learn as models in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

from app.cli.errors import CommandError
from popgate_tools.pack_columns import (
    Column,
    UnknownType,
    columns_of,
    columns_of_sample,
    read_sample,
)
from popgate_tools.packed import NUMBERS, Packed, X, library, quoted

_GAPS = {"nan": 'float("nan")', "None": "None", "": '""'}
#: Most categories that a comment names.
_SHOWN = 6


def sklearn(file: Path, sample: Path | None = None) -> Packed:
    """Estimators and pipelines that joblib or pickle has written.

    A pipeline that was fitted on a DataFrame has an input for each column; others have
    one matrix, or one column of strings. `sample` has rows of that DataFrame.
    """
    model = library("joblib", "scikit-learn joblib").load(file)
    if not hasattr(model, "predict"):
        msg = f"{file} is a {type(model).__name__}, which has no predict"
        raise CommandError(f"{msg}: pack a pipeline that ends in an estimator")
    names = getattr(model, "feature_names_in_", None)
    frame = None if sample is None else read_sample(sample)
    first = model[0] if hasattr(model, "steps") else model
    if hasattr(first, "analyzer"):  # a vectorizer
        made = _of_texts(model)
    elif names is None:
        made = _of_matrix(model, file)
    else:
        columns = _columns(model, [str(name) for name in names], file, sample, frame)
        made = _of_frame(model, columns, file)
    _try(made, model, file, frame)
    return made


def _columns(
    model: Any, names: Sequence[str], file: Path, sample: Path | None, frame: Any
) -> list[Column]:
    if sample is not None:
        return columns_of_sample(frame, names, sample)
    try:
        return columns_of(model, names)
    except UnknownType as step:
        msg = f"{file}: the types of its columns are unknown because of {step}; "
        msg += "--sample FILE takes them from rows (.csv, .parquet or .jsonl)"
        raise CommandError(msg) from None


def _of_texts(model: Any) -> Packed:
    given = "[each.decode() for each in text]"
    outputs, call = _predicts(model, [""], given)
    example = {"text": [""]}
    return _packed(call, {"text": "BYTES[-1]"}, outputs, example)


def _of_matrix(model: Any, file: Path) -> Packed:
    """Return the model of one matrix of numbers. Raises `CommandError` for strings."""
    width = getattr(model, "n_features_in_", -1)
    row = [0.0] * max(width, 1)
    if width > 0:
        try:
            columns = columns_of(model, [f"column {number}" for number in range(width)])
        except UnknownType:
            columns = []
        texts = [column.name for column in columns if column.datatype == "BYTES"]
        if texts:
            msg = f"{file}: {', '.join(texts[:_SHOWN])} hold strings and have no names;"
            raise CommandError(f"{msg} fit the pipeline on a DataFrame")
        if len(columns) == width:
            row = [float(column.example) for column in columns]
    try:
        outputs, call = _predicts(model, np.array([row]), X)
    except ValueError as error:
        msg = f"{file} does not take a row of {len(row)} numbers: {error}"
        raise CommandError(f"{msg}; fit the pipeline on a DataFrame") from None
    example = {X: [row]} if any(row) else {}
    return _packed(call, {X: f"FP64[-1,{width}]"}, outputs, example)


def _of_frame(model: Any, columns: Sequence[Column], file: Path) -> Packed:
    source = _frame_source(columns)
    example = {column.name: [column.example] for column in columns}
    written = _imported(f"{_FRAME_IMPORTS}\n\n{source}\n")
    rows = written.frame_of(_arrays(columns, example))
    try:
        outputs, call = _predicts(model, rows, "frame_of(columns)")
    except Exception as error:  # any error of the library, or of code in the file
        msg = f"{file} does not take {example}: {type(error).__name__}: {error}; "
        msg += "--sample FILE takes types from rows (.csv, .parquet or .jsonl)"
        raise CommandError(msg) from None
    indented = call.replace("\n", "\n    ")
    call = (
        f"try:\n            {indented}\n"
        "        except ValueError as error:  # such as an unknown category\n"
        "            raise InvalidInput(str(error)) from None"
    )
    inputs = {column.name: f"{column.datatype}[-1]" for column in columns}
    made = _packed(call, inputs, outputs, example)
    guessed = [column.name for column in columns if not column.is_known]
    note = f"the file does not say the types of {', '.join(guessed)}: FP64, which takes"
    note += " no true and false; --sample FILE takes them from rows"
    return replace(
        made,
        imports=f"{_FRAME_IMPORTS}\n\nfrom popgate import InvalidInput\n\n\n{source}",
        takes_columns=True,
        comments={column.name: _comment(column) for column in columns},
        requires=(*made.requires, "pandas"),
        notes=(note,) if guessed else (),
    )


_FRAME_IMPORTS = "import joblib\nimport pandas as pd"


def _frame_source(columns: Sequence[Column]) -> str:
    """Return the function of `model.py` that makes a DataFrame of inputs."""
    lines, has_texts = [], False
    for column in columns:
        value = f"columns[{quoted(column.name)}]"
        if column.datatype == "BYTES":
            value, has_texts = f"texts({value}, {_GAPS[column.gap]})", True
        if column.is_category:
            value = f'pd.Series({value}).astype("category")'
        lines.append(f"            {quoted(column.name)}: {value},\n")
    texts = (
        "def texts(values, gap):\n"
        '    """Return strings, and `gap` for those that are empty."""\n'
        "    return pd.Series([each.decode() or gap for each in values], dtype=object)"
        "\n\n\n"
    )
    return (
        f"{texts if has_texts else ''}def frame_of(columns):\n"
        '    """Return the rows as the pipeline was fitted on them."""\n'
        f"    return pd.DataFrame(\n        {{\n{''.join(lines)}        }}\n    )"
    )


def _comment(column: Column) -> str:
    """Return a comment with some values of a column of strings."""
    if column.datatype != "BYTES" or not column.values:
        return ""
    more = ", …" if len(column.values) > _SHOWN else ""
    return ", ".join(quoted(value) for value in column.values[:_SHOWN]) + more


def _predicts(model: Any, rows: Any, given: str) -> tuple[dict[str, str], str]:
    """Return the outputs of a model, and the statements that return them.

    `rows` is an example, `given` the expression for the rows of a call.
    """
    found = np.asarray(model.predict(rows))
    labels, number = "self.model.predict(rows)", NUMBERS.get(str(found.dtype))
    name = "label" if getattr(model, "classes_", None) is not None else "output"
    outputs = {name: _of_rows(found, number or "BYTES")}
    if number is None:
        labels = f"{labels}.astype(object)"
    chances = None
    if hasattr(model, "predict_proba"):
        chances = model.predict_proba(rows)
    if not isinstance(chances, np.ndarray):
        return outputs, f'rows = {given}\n        return {{"{name}": {labels}}}'
    outputs["probabilities"] = _of_rows(chances, NUMBERS[str(chances.dtype)])
    return outputs, (
        f"rows = {given}\n        return {{\n"
        f'            "{name}": {labels},\n'
        '            "probabilities": self.model.predict_proba(rows),\n'
        "        }"
    )


def _of_rows(found: Any, kind: str) -> str:
    return f"{kind}[{','.join(map(str, (-1, *found.shape[1:])))}]"


def _packed(
    call: str, inputs: dict[str, str], outputs: dict[str, str], example: dict[str, Any]
) -> Packed:
    return Packed(
        "import joblib",
        "self.model = joblib.load(file)",
        call,
        inputs,
        outputs,
        ("sklearn", "joblib"),
        is_code=True,
        example=example,
    )


def _arrays(columns: Sequence[Column], values: Any) -> dict[str, Any]:
    """Return values by column in the form in which a device passes them to a model."""
    found = {}
    for column in columns:
        given = list(values[column.name])
        if column.datatype == "BYTES":
            texts = [v.encode() if isinstance(v, str) else b"" for v in given]
            found[column.name] = np.array(texts, object)
        else:
            dtype = {kind: name for name, kind in NUMBERS.items()}[column.datatype]
            found[column.name] = np.array(given, dtype)
    return found


def _imported(source: str) -> Any:
    """Return the module of a generated source."""
    with TemporaryDirectory(prefix="popgate-pack-") as folder:
        file = Path(folder) / "packed_model.py"
        file.write_text(source, encoding="utf-8")
        spec = spec_from_file_location("packed_model", file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def _try(made: Packed, model: Any, file: Path, frame: Any) -> None:
    """Run the generated code on the rows of the sample, else on the example.

    Raises `CommandError` if it fails, or returns other values than the model.
    """
    if not made.takes_columns:
        return
    packed = _imported(made.source("sklearn", file.name)).Packed()
    packed.load(SimpleNamespace(folder=file.parent))
    columns = [Column(n, kind.partition("[")[0]) for n, kind in made.inputs.items()]
    rows: Any = made.example if frame is None else frame
    expected = None if frame is None else np.asarray(model.predict(frame))
    try:
        found = next(iter(packed(**_arrays(columns, rows)).values()))
    except Exception as error:  # any error of the library, or of code in the file
        msg = f"{file} does not take its own columns: {type(error).__name__}: {error}"
        raise CommandError(msg) from None
    if expected is not None and not np.array_equal(found, expected):
        wrong = int((np.asarray(found) != expected).sum())
        msg = f"{file} gives other values for {wrong} rows of --sample if its  "
        raise CommandError(f"{msg}columns come as inputs; edit model.py by hand")
