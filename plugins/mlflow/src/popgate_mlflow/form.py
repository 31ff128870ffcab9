"""MLflow's protocol: ``POST /invocations`` with a table, or with tensors.

A table is a JSON object with ``dataframe_split`` (columns and rows) or
``dataframe_records`` (an object for each row), or CSV with a line of names. Its columns
are inputs by name, or all together the rows of the only input. Columns without an input
are dropped, as MLflow does. ``instances`` and ``inputs`` are those of `popgate_kserve`.
The answer is always ``{"predictions": …}``.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from app.codec.chunks import join
from app.codec.json_lists import parse_listed
from app.codec.json_text import check_json_size
from app.codec.media import UNCERTAIN_TYPES
from app.codec.memory_check import ensure_room, reserve
from app.codec.messages import Body, InferRequest, Response, json_response
from app.codec.model import ModelCodec
from app.errors import BodyTooLarge, InvalidRequest, InvalidTensor, UnsupportedMediaType
from app.give_way import give_way, in_blocks
from app.limits import Limits
from app.serving.table import ModelTable, infer_path
from app.spec import ModelSpec, TensorSpec
from engine import Tensor
from popgate_kserve.form import by_input, encode_predict, only_input, request_of

FORMS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs")
_KEYS: Final = (*FORMS, "params", "parameters", "signature_name")
_HELP: Final = (
    "expected CSV, or a JSON object with one of "
    f"{', '.join(FORMS)}, as in "
    '{"dataframe_records": [{"age": 33, "city": "Bonn"}]}'
)
_TYPES: Final = frozenset(
    (b"application/json", b"text/json", b"text/csv", b"application/csv")
)
#: The type of a form that a browser posts. curl sends it for any body, so JSON may have
#: it. CSV may not, because the line of a posted form would be read as names of columns.
_POSTED_FORM: Final = b"application/x-www-form-urlencoded"
#: CSV cells that mean a missing number, as in pandas.
_GAPS: Final = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
     "1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
#: A cell of CSV counts as so many values of a document, like a string of large JSON.
_VALUES_OF_CELL: Final = 3
#: Upper bounds of the bytes that CSV becomes, for each of its bytes and its cells.
_BYTES_OF_CHARACTER, _BYTES_OF_CELL = 4, 120
#: Rows that are read before other threads may run. The event loop reads fewer.
_PAUSE_AFTER: Final = 1 << 14
#: The most cells of a table made of records: so many for each value in them, and some.
_MOST_GAPS: Final = 8
_FEW_CELLS: Final = 1 << 16
_TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}

#: Values by input, and the number of rows if they came in rows.
Values = tuple[Mapping[str, Any], int | None]


class InvocationsForm:
    """One request of this protocol (`app.serving.naming_form.NamingForm`).

    `model` answers requests whose path names no model. If it is empty, the only model
    answers.
    """

    not_one = "the model must return exactly 1 response"

    def __init__(self, model: str = "") -> None:
        self.model = model
        self.rows: int | None = None
        self._is_posted_form = False

    def check_type(self, media_type: bytes) -> None:
        self._is_posted_form = media_type == _POSTED_FORM
        if media_type not in _TYPES and media_type not in UNCERTAIN_TYPES:
            raise _other_type(media_type)

    def target(self, body: Body, models: ModelTable) -> str:
        if self.model:
            return infer_path(self.model)
        names = models.names()
        if len(names) != 1:
            msg = f"/invocations names no model, and this server serves {len(names)}: "
            msg += "call /v1/models/NAME/invocations, or start the server with "
            raise InvalidRequest(msg + "--invocations NAME")
        return infer_path(names[0])

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        self.not_one = f"model '{codec.spec.name}' must return exactly 1 response"
        text = bytes(join(body))
        check_json_size(len(text), codec.limits)
        parameters: object = None
        if text.lstrip()[:1] in (b"{", b"["):
            document = _document(text, codec)
            parameters = document.get("params") or document.get("parameters")
            values, self.rows = _values(codec.spec, document)
        elif self._is_posted_form:
            raise _other_type(_POSTED_FORM)
        else:
            values, self.rows = _from_csv(codec, text)
        return request_of(codec, values, self.rows, parameters, extra_columns="ignore")

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        return json_response(
            encode_predict(
                codec, self.rows, outputs, request.nan, of_columns="predictions"
            )
        )


def _other_type(media_type: bytes) -> UnsupportedMediaType:
    shown = media_type[:200].decode("ascii", "backslashreplace")
    return UnsupportedMediaType(
        f"content type '{shown}' is not supported by /invocations: send a table as "
        f"'Content-Type: application/json' or 'text/csv'; {_HELP}"
    )


def _document(text: bytes, codec: ModelCodec) -> dict[str, Any]:
    limits = codec.limits
    document = parse_listed(text, limits)
    if type(document) is not dict:
        raise InvalidRequest(f"{_HELP}, got a list")
    given = [key for key in FORMS if key in document]
    unknown = [key for key in document if key not in _KEYS]
    if len(given) != 1 or unknown:
        shown = ", ".join(f"{key:.80}" for key in [*document][:20])
        what = f", got {shown or 'an empty one'}"
        raise InvalidRequest(_HELP + what)
    return document


def _values(spec: ModelSpec, document: Mapping[str, Any]) -> Values:
    """Return the values by input of one of the four forms."""
    if "dataframe_split" in document:
        return _from_split(spec, document["dataframe_split"])
    if "dataframe_records" in document:
        return _from_records(spec, document["dataframe_records"])
    if "instances" in document:
        instances = document["instances"]
        return by_input(spec, instances), len(instances)
    inputs = document["inputs"]
    return (inputs if isinstance(inputs, dict) else {only_input(spec): inputs}), None


def _from_split(spec: ModelSpec, table: object) -> Values:
    """Return the values of ``{"columns": […], "data": [[…], …]}``."""
    if type(table) is not dict or not isinstance(table.get("data"), list):
        msg = "'dataframe_split' must be an object with 'columns' and 'data', as in "
        raise InvalidRequest(msg + '{"columns": ["age"], "data": [[33]]}')
    rows, columns = table["data"], table.get("columns")
    width = len(rows[0]) if rows and isinstance(rows[0], list) else 0
    if columns is None:
        columns = [str(number) for number in range(width)]
    if not isinstance(columns, list) or not all(
        isinstance(name, str | int) for name in columns
    ):
        raise InvalidRequest("'columns' of 'dataframe_split' must be a list of strings")
    names = [str(name) for name in columns]
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            got = f"{len(row)} values" if isinstance(row, list) else "no list"
            msg = f"row {number} of 'dataframe_split' has {got}, expected "
            raise InvalidRequest(f"{msg}{len(names)}, one for each of 'columns'")
    columns = [list(column) for column in zip(*rows, strict=True)]
    return _of_table(spec, names, columns, len(rows), _as_it_is)


def _from_records(spec: ModelSpec, records: object) -> Values:
    """Return the values of ``[{…}, …]``; a key that a record lacks is a gap."""
    if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        msg = "'dataframe_records' must be a list of objects, as in "
        raise InvalidRequest(msg + '[{"age": 33, "city": "Bonn"}]')
    names = list(dict.fromkeys(name for record in records for name in record))
    # Records that have few keys in common make a table far larger than themselves.
    cells = len(records) * len(names)
    if cells > _FEW_CELLS + _MOST_GAPS * sum(map(len, records)):
        msg = f"'dataframe_records' has {len(records)} records of {len(names)} keys, "
        raise InvalidRequest(msg + "nearly all of which are missing in each record")
    columns = [[record.get(name) for record in records] for name in names]
    return _of_table(spec, names, columns, len(records), _as_it_is)


def _from_csv(codec: ModelCodec, text: bytes) -> Values:
    """Return the values of CSV with a line of names."""
    _check_cells(text, codec.limits)
    cells: list[str] = []
    rows = 0
    try:
        lines = csv.reader(_lines_of(text, codec.limits))
        names = next(lines, [])
        for row in filter(None, lines):
            if len(row) != len(names):
                msg = f"row {rows} of the CSV has {len(row)} cells, expected "
                raise InvalidRequest(f"{msg}{len(names)}, one for each column: {_HELP}")
            cells += row
            rows += 1
            if rows % _PAUSE_AFTER == 0:
                give_way()
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(
            f"the body must be JSON or CSV, got neither: {error}"
        ) from None
    if not rows:
        raise InvalidRequest(f"the body has no rows below its header line: {_HELP}")
    columns = [cells[start :: len(names)] for start in range(len(names))]
    return _of_table(codec.spec, names, columns, rows, _cell)


def _check_cells(text: bytes, limits: Limits) -> None:
    """Limit the memory that CSV becomes: a cell of a letter takes 60 times its text."""
    cells = text.count(b",") + text.count(b"\n") + text.count(b"\r")
    cells -= text.count(b"\r\n")
    if _VALUES_OF_CELL * cells > limits.max_document_values:
        raise BodyTooLarge(
            f"the CSV has {cells} cells, which count as {_VALUES_OF_CELL} values each, "
            f"and at most {limits.max_document_values} values are allowed; send large "
            "tensors as binary data"
        )
    size = _BYTES_OF_CHARACTER * len(text) + _BYTES_OF_CELL * cells
    reserve(size)
    ensure_room(size)


def _lines_of(text: bytes, limits: Limits) -> Iterator[str]:
    """Yield the lines of CSV. The reader keeps Python's lock for the whole of a line,
    so their commas are limited.
    """
    most = limits.max_document_keys
    for line in io.TextIOWrapper(io.BytesIO(text), "utf-8-sig", newline=""):
        if len(line) > most and line.count(",") > most:
            msg = f"a line of the CSV has more than {most} commas"
            raise InvalidRequest(f"{msg}, which is the limit")
        yield line


Reads = Callable[[TensorSpec, Any, int, str], Any]
"""Convert a cell of a table to an element of an input. An `InvalidTensor` names the row
and the column.
"""


def _of_table(
    spec: ModelSpec,
    names: Sequence[str],
    columns: Sequence[list[Any]],
    rows: int,
    read: Reads,
) -> Values:
    """Return the values of a table by input."""
    if len(set(names)) < len(names):
        ((twice, _),) = Counter(names).most_common(1)
        raise InvalidRequest(f"the table has the column '{twice:.200}' twice")
    if not rows:
        raise InvalidRequest("the table has no rows")
    needed = [t for t in spec.inputs if t.name not in spec.defaults]
    named = zip(names, columns, strict=True)
    if len(needed) == 1 and not set(names) & spec.inputs_by_name.keys():
        (only,) = needed
        table = [_read(only, name, column, read) for name, column in named]
        if only.shape is not None and len(only.shape) == len(names) == 1:
            return {only.name: table[0]}, rows
        return {only.name: [list(row) for row in zip(*table, strict=True)]}, rows
    values: dict[str, Any] = {}
    for name, column in named:
        tensor = spec.inputs_by_name.get(name)
        values[name] = column if tensor is None else _read(tensor, name, column, read)
    return values, rows


def _read(tensor: TensorSpec, name: str, column: list[Any], read: Reads) -> list[Any]:
    """Return the elements of a column, read in blocks if it is long."""
    at = count()
    return [read(tensor, v, next(at), name) for b in in_blocks(column) for v in b]


def _as_it_is(tensor: TensorSpec, value: Any, row: int, column: str) -> Any:
    """Return a value of JSON. A gap in a column of strings is the empty string."""
    return "" if value is None and tensor.type.kind == "s" else value


def _cell(tensor: TensorSpec, text: str, row: int, column: str) -> Any:
    """Return the value of a cell of CSV. Raises `InvalidTensor`."""
    kind = tensor.type.kind
    if kind == "s":
        return text
    # Python's numbers may have underscores, and digits of any script.
    cell = text.strip().replace("_", "no digit")
    if cell in _GAPS:
        return None
    try:
        if not cell.isascii():
            raise ValueError
        if kind == "b":
            return _TRUTHS[cell.lower()]
        if kind == "f":
            return float(cell)
        return _whole(cell)
    except (KeyError, ValueError):
        msg = f"'{text:.80}' in row {row} of column '{column:.80}' is not a "
        raise InvalidTensor(msg + tensor.datatype) from None


def _whole(cell: str) -> int:
    try:
        return int(cell)
    except ValueError:
        number = float(cell)
        if not number.is_integer():
            raise ValueError from None
        return int(number)
