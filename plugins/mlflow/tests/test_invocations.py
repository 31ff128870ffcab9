"""MLflow's protocol over HTTP: tables as JSON and CSV, tensors, gaps, errors.

Covers: app/serving/naming_form.py,
plugins/mlflow/src/popgate_mlflow/form.py,
plugins/mlflow/src/popgate_mlflow/routes.py,
plugins/mlflow/src/popgate_mlflow/schemas.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.codec.model import ModelCodec
from app.errors import InvalidRequest, InvalidTensor, RequestError
from app.limits import Limits
from app.serving.table import ModelTable
from app.spec import ModelSpec, TensorSpec
from engine import Tensor
from popgate_mlflow.form import InvocationsForm
from tests.app.served import ServedGateway

ROW = [1.0, 2.0, 3.0, 4.0]
AFFINE = [3.0, 5.0, 7.0, 9.0]
PEOPLE = ModelSpec(
    name="people",
    version="1",
    inputs=(
        TensorSpec.make("age", "FP64", (-1,)),
        TensorSpec.make("children", "INT64", (-1, 1)),
        TensorSpec.make("city", "BYTES", (-1,)),
        TensorSpec.make("member", "BOOL", (-1,)),
    ),
    outputs=(TensorSpec.make("score", "FP64", (-1,)),),
)


def post(
    served: ServedGateway, body: Any, path: str = "/v1/models/affine/invocations"
) -> tuple[int, Any]:
    response = served.client.post(path, json=body)
    return response.status_code, response.json()


def post_csv(served: ServedGateway, text: str) -> httpx.Response:
    headers = {"content-type": "text/csv"}
    path = "/v1/models/affine/invocations"
    return served.client.post(path, content=text, headers=headers)


def values_of(body: Any) -> dict[str, Any]:
    """The inputs that a body is read as, as lists."""
    text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    request = InvocationsForm().decode(ModelCodec(PEOPLE), [text])
    return {name: listed(tensor) for name, tensor in request.inputs.items()}


def listed(tensor: Tensor) -> list[Any]:
    return tensor.numpy().ravel().tolist()


def refused(body: Any) -> str:
    with pytest.raises(RequestError) as error:
        values_of(body)
    return str(error.value)


def test_every_form_gives_predictions(gateway: ServedGateway) -> None:
    columns = list("abcd")
    expected = (200, {"predictions": [AFFINE, AFFINE]})
    record = dict(zip(columns, ROW, strict=True))
    for body in (
        {"dataframe_split": {"columns": columns, "data": [ROW, ROW], "index": [7, 8]}},
        {"dataframe_split": {"data": [ROW, ROW]}},
        {"dataframe_records": [record, record]},
        {"instances": [ROW, ROW]},
        {"inputs": [ROW, ROW]},
        {"inputs": {"input": [ROW, ROW]}},
    ):
        assert post(gateway, body) == expected, body
    versions = "/v1/models/many/versions/2/invocations"
    assert post(gateway, {"instances": [ROW]}, versions)[0] == 200
    found = post_csv(gateway, "a,b,c,d\n1,2,3,4\n1,2,3,4\n")
    assert (found.status_code, found.json()) == expected


JSON = '{"instances": [[1, 2, 3, 4]]}'
CSV = "a,b,c,d\n1,2,3,4\n"
POSTED = "a=1&b=2"
OF_FORMS = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("content_type", "body", "is_read"),
    [
        ("application/json", JSON, True),
        ("Application/JSON; format=pandas-split", JSON, True),
        ("text/csv; charset=utf-8", CSV, True),
        ("application/octet-stream", CSV, True),
        ("application/octet-stream", JSON, True),
        (OF_FORMS, JSON, True),  # curl sends this type for any body
        (OF_FORMS, CSV, False),
        (OF_FORMS, POSTED, False),
        ("multipart/form-data; boundary=x", JSON, False),
        ("text/html", CSV, False),
        ("image/png", "\x89PNG", False),
    ],
)
def test_content_types(
    gateway: ServedGateway, content_type: str, body: str, is_read: bool
) -> None:
    headers = {"content-type": content_type}
    path = "/v1/models/affine/invocations"
    found = gateway.client.post(path, content=body, headers=headers)
    if is_read:
        assert (found.status_code, found.json()) == (200, {"predictions": [AFFINE]})
    else:
        refused = found.json()
        assert (found.status_code, refused["code"]) == (415, "unsupported_media_type")
        assert f"'{content_type.partition(';')[0]}'" in refused["error"]
        assert "'Content-Type: application/json' or 'text/csv'" in refused["error"]


def test_cells_and_commas_of_csv_are_limited() -> None:
    """A body of 60 MB took 3.5 GB before it was refused."""
    spec = replace(PEOPLE, inputs=(TensorSpec.make("age", "FP64", (-1,)),))
    codec = ModelCodec(spec, Limits(max_document_values=30, max_document_keys=4))
    request = InvocationsForm().decode(codec, [b"age\r\n" + b"1\r\n" * 9])
    assert listed(request.inputs["age"]) == [1.0] * 9
    for text, words in (
        (b"age\n" + b"1\n" * 10, "the CSV has 11 cells, which count as 3 values each"),
        (b"age\r" + b"\r" * 10, "the CSV has 11 cells"),
        (b"a,b,c,d,e,f\n", "a line of the CSV has more than 4 commas"),
    ):
        with pytest.raises(RequestError, match=words):
            InvocationsForm().decode(codec, [text])


def test_csv_of_many_cells_is_read_in_a_thread() -> None:
    takes_long = ModelCodec(PEOPLE).takes_long
    for text in (b"1\n", b"1\r", b"1,"):
        assert takes_long({}, [text * 20_000], InvocationsForm())
        assert not takes_long({}, [text * 10_000], InvocationsForm())


def test_gaps_are_nan(gateway: ServedGateway) -> None:
    found = post_csv(gateway, "a,b,c,d\n,2,3,4\n")
    assert found.status_code == 200, found.text
    (row,) = json.loads(found.content)["predictions"]
    assert np.isnan(row[0])
    assert row[1:] == AFFINE[1:]
    body = {"instances": [[None, 2, 3, 4]], "params": {"missing": "refuse"}}
    status, answer = post(gateway, body)
    assert (status, "is null" in answer["error"]) == (400, True)


def test_the_only_model_answers_where_none_is_named(
    gateway: ServedGateway, tmp_path: Path
) -> None:
    status, answer = post(gateway, {"instances": [ROW]}, "/invocations")
    assert status == 400
    assert "--invocations NAME" in answer["error"]
    form = InvocationsForm("affine")
    assert form.target([b""], ModelTable()) == "/v1/models/affine/infer"


def test_answers_are_counted_as_inference(gateway: ServedGateway) -> None:
    def counts() -> list[int]:
        text = gateway.client.get("/metrics").text
        return [
            sum(
                map(
                    int,
                    re.findall(
                        rf"^popgate_http_responses_total{labels} (\d+)$",
                        text,
                        re.MULTILINE,
                    ),
                )
            )
            for labels in (
                r'\{route="infer",status="200"\}',
                r'\{code="invalid_request",route="infer",status="400"\}',
                r'\{.*route="pages".*\}',
            )
        ]

    right, wrong, pages = counts()
    assert post(gateway, {"instances": [ROW]})[0] == 200
    assert post(gateway, {"instances": [ROW]}, "/invocations")[0] == 400
    assert counts() == [right + 1, wrong + 1, pages]


def test_tables_of_all_types() -> None:
    expected: dict[str, list[Any]] = {
        "age": [33.5, 41.0],
        "children": [2, 0],
        "city": [b"Bonn", b""],
        "member": [True, False],
    }
    names = list(expected)
    rows: list[list[Any]] = [[33.5, 2, "Bonn", True], [41, 0, None, False]]
    records = [dict(zip(names, row, strict=True)) for row in rows]
    del records[1]["city"]  # a gap
    for body in (
        {"dataframe_split": {"columns": names, "data": rows}},
        {"dataframe_records": records},
        "age,children,city,member\n33.5,2,Bonn,True\n41,0.0,,false\n",
        "\ufeffage,children,city,member\r\n33.5,2,Bonn,1\r\n41,0,,0\r\n",
        'city,id,age,member,children\n"Bonn",x,33.5,TRUE,2\n"",y,41,FALSE,0\n',
    ):
        assert values_of(body) == expected, body


@pytest.mark.parametrize("gap", ["", "NA", "nan", "NULL", "None", " "])
def test_cells_that_pandas_takes_for_gaps(gap: str) -> None:
    text = f"age,children,city,member\n{gap},1,NA,1\n"
    found = values_of(text)
    assert np.isnan(found["age"]).all()
    assert found["city"] == [b"NA"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([1], "with one of dataframe_split, dataframe_records, instances, inputs"),
        ({}, "got an empty one"),
        ({"instances": [1], "inputs": [1]}, "got instances, inputs"),
        ({"dataframe": {}}, "got dataframe"),
        ({"dataframe_split": []}, "with 'columns' and 'data'"),
        ({"dataframe_split": {"columns": "age", "data": []}}, "a list of strings"),
        (
            {"dataframe_split": {"columns": ["age"], "data": [[1], [1, 2]]}},
            "row 1 of 'dataframe_split' has 2 values, expected 1",
        ),
        ({"dataframe_split": {"columns": ["age"], "data": [7]}}, "row 0 of"),
        ({"dataframe_split": {"columns": ["a", "a"], "data": [[1, 2]]}}, "'a' twice"),
        ({"dataframe_records": [1]}, "must be a list of objects"),
        ({"dataframe_records": []}, "has no rows"),
        ({"dataframe_records": [{"age": 1}]}, "missing required"),
        (
            {"dataframe_records": [{f"a{n}": 1} for n in range(6000)]},
            "6000 records of 6000 keys, nearly all of which are missing",
        ),
        (
            {"dataframe_split": {"columns": [*map(str, range(9999)), "7"], "data": []}},
            "'7' twice",
        ),
        ("age,city\n1,2,3\n", "row 0 of the CSV has 3 cells, expected 2"),
        ("age,children,city,member\n1,1.5,a,1\n", "'1.5' in row 0 of column 'children"),
        ("age,children,city,member\n1,1,a,yes\n", "'yes' in row 0 of column 'member'"),
        ("age,children,city,member\n1_0,1,a,1\n", "is not a FP64"),
        ("age,children,city,member\n\u0661,1,a,1\n", "is not a FP64"),
        (
            "age,children,city,member\n1,\u0661,a,1\n",
            "'\u0661' in row 0 of column 'children",
        ),
        ("age,children,city,member\n", "no rows below its header line"),
        ("", "no rows"),
        ({"instances": [{"age": 1}], "params": {"extra_columns": "x"}}, "'refuse'"),
    ],
)
def test_what_is_no_table_is_said(body: Any, words: str) -> None:
    assert words in refused(body)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be JSON or CSV"):
        InvocationsForm().decode(ModelCodec(PEOPLE), [b"\xff\xfe"])
    assert issubclass(InvalidTensor, RequestError)
