"""KServe's first protocol over HTTP: rows, columns, names, bytes, errors.

Covers: plugins/kserve/src/popgate_kserve/routes.py,
    plugins/kserve/src/popgate_kserve/schemas.py.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from app.codec import ModelCodec
from app.errors import InvalidRequest, NotRepresentable
from app.spec import ModelSpec, TensorSpec
from engine import Tensor
from popgate_kserve.form import decode_predict, encode_predict
from tests.app.served import ServedGateway


def predict(served: ServedGateway, model: str, body: Any) -> tuple[int, Any]:
    response = served.client.post(f"/v1/models/{model}:predict", json=body)
    assert response.headers["content-type"] == "application/json"
    return response.status_code, response.json()


ROW = [1.0, 2.0, 3.0, 4.0]
AFFINE = [3.0, 5.0, 7.0, 9.0]


def test_rows(gateway: ServedGateway) -> None:
    body = {"instances": [ROW, ROW], "signature_name": "serving_default"}
    assert predict(gateway, "affine", body) == (200, {"predictions": [AFFINE, AFFINE]})
    named = {"instances": [{"input": ROW}]}
    assert predict(gateway, "affine", named) == (200, {"predictions": [AFFINE]})
    assert predict(gateway, "many/versions/2", body)[0] == 200


def test_gaps_are_nan(gateway: ServedGateway) -> None:
    for body in ({"instances": [[None, 2, 3, 4]]}, {"inputs": [[None, 2, 3, 4]]}):
        response = gateway.client.post("/v1/models/affine:predict", json=body)
        (values,) = next(iter(json.loads(response.content).values()))
        assert response.status_code == 200
        assert np.isnan(values[0])
        assert values[1:] == AFFINE[1:]


def test_extra_columns(gateway: ServedGateway) -> None:
    body: dict[str, Any] = {"instances": [{"input": ROW, "id": "x"}]}
    status, answer = predict(gateway, "affine", body)
    assert status == 400
    assert "'extra_columns'" in answer["error"]
    body["parameters"] = {"extra_columns": "ignore"}
    assert predict(gateway, "affine", body) == (200, {"predictions": [AFFINE]})


def test_columns(gateway: ServedGateway) -> None:
    expected = (200, {"outputs": [AFFINE]})
    assert predict(gateway, "affine", {"inputs": [ROW]}) == expected
    assert predict(gateway, "affine", {"inputs": {"input": [ROW]}}) == expected


def test_several_inputs_and_outputs(triton: ServedGateway) -> None:
    row = {"INPUT0": [5] * 16, "INPUT1": [2] * 16}
    out = {"OUTPUT0": [7] * 16, "OUTPUT1": [3] * 16}
    assert predict(triton, "simple", {"instances": [row, row]}) == (
        200,
        {"predictions": [out, out]},
    )
    status, answer = predict(
        triton, "simple", {"inputs": {k: [v] for k, v in row.items()}}
    )
    assert (status, answer) == (200, {"outputs": {k: [v] for k, v in out.items()}})


def test_bytes(triton: ServedGateway) -> None:
    b64 = {"b64": base64.b64encode("ä".encode()).decode()}
    body = {"instances": [["a", b64], [b64, ""]]}
    expected = {"predictions": [["a", "ä"], ["ä", ""]]}
    assert predict(triton, "simple_identity", body) == (200, expected)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "expected a JSON object with either 'instances' or 'inputs'"),
        ([], "with either 'instances' or 'inputs', got a list"),
        ({"instances": [ROW], "inputs": [ROW]}, "either 'instances' or 'inputs'"),
        ({"instances": []}, "must be a list with at least one instance"),
        ({"instances": ROW}, "4 instances have shape [1, 4]"),
        ({"instances": [[1.0]]}, "unexpected shape for input 'input'"),
        ({"instances": [{"no": ROW}]}, "unexpected input 'no' for model 'affine'"),
        ({"instances": [{"input": ROW}, {}]}, "instance 1 has other keys"),
        ({"instances": [["x"] * 4]}, "element 0 of input 'input' is the string"),
        (
            {"instances": [[{"b64": "AA=="}] * 4]},
            "(FP32) is an object; expected a value",
        ),
        ({"instances": [[None] * 4], "parameters": {"missing": "refuse"}}, "'missing'"),
        ({"instances": [ROW], "parameters": [1]}, "'parameters' must be an object"),
        (
            {"instances": [ROW], "parameters": {"extra_columns": 1}},
            "'extra_columns' must be 'ignore' or 'refuse'",
        ),
        ({"instances": [ROW], "more": 1}, "unexpected key 'more'"),
        ({"instances": [ROW], "signature_name": "x"}, "must be 'serving_default'"),
    ],
)
def test_what_is_refused(gateway: ServedGateway, body: Any, text: str) -> None:
    status, answer = predict(gateway, "affine", body)
    assert status == 400
    assert text in answer["error"]


def test_models_that_are_not_there(gateway: ServedGateway) -> None:
    assert predict(gateway, "no", {"instances": [1]})[0] == 404
    assert predict(gateway, "broken", {"instances": [1]})[0] == 503
    assert gateway.client.get("/v1/models/affine:predict").status_code in (404, 405)


def test_readiness(gateway: ServedGateway) -> None:
    document = gateway.client.get("/v1/models/affine").json()
    assert (document["name"], document["ready"]) == ("affine", True)
    assert gateway.client.get("/v1/models/broken").json()["ready"] is False


def test_several_inputs_need_names(triton: ServedGateway) -> None:
    status, answer = predict(triton, "simple", {"instances": [[1] * 16]})
    assert status == 400
    assert "has 2 inputs; each instance must be an object" in answer["error"]


def codec(*shape: int) -> ModelCodec:
    outputs = (TensorSpec.make("y", "FP32", shape), TensorSpec.make("z_bytes", "BYTES"))
    inputs = (TensorSpec.make("x", "INT64", (-1,)),)
    return ModelCodec(ModelSpec("m", "1", inputs, outputs))


def test_no_nesting_is_too_deep_for_its_refusal() -> None:
    deep = b"[" * 900 + b"]" * 900
    body = b'{"instances": [1], "parameters": {"extra_columns": %b}}' % deep
    with pytest.raises(InvalidRequest, match="or 'refuse', got a list"):
        decode_predict(codec(-1), [body])


def test_many_keys_are_not_listed() -> None:
    first = {f"{number:050}": 1 for number in range(1000)}
    body = json.dumps({"instances": [first, {}]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        decode_predict(codec(-1), [body])
    assert len(str(caught.value)) < 2000


def encode(form: str, y: Any, z: list[bytes]) -> Any:
    made = codec(-1)
    request, instances = decode_predict(made, [b'{"%b": [1, 2]}' % form.encode()])
    outputs = {
        "y": Tensor.from_numpy(np.array(y, np.float32)),
        "z_bytes": Tensor.from_numpy(np.array(z, np.object_)),
    }
    return json.loads(encode_predict(made, instances, outputs, request.nan))


def test_shapes_of_answers() -> None:
    both = {"b64": "Yg=="}
    assert encode("inputs", 1.5, [b"b"]) == {"outputs": {"y": 1.5, "z_bytes": [both]}}
    y = [[[1.0, 2.0]], [[3.0, 4.0]]]
    assert encode("inputs", y, [])["outputs"] == {"y": y, "z_bytes": []}
    assert encode("instances", y, [b"b", b"b"]) == {
        "predictions": [{"y": row, "z_bytes": both} for row in y]
    }
    empty = np.zeros((2, 0, 3), np.float32)
    assert encode("inputs", empty, [])["outputs"]["y"] == [[], []]


def test_records_of_a_table() -> None:
    """As `df.to_dict("records")` and `df.to_dict("list")` give them to a pipeline of
    scikit-learn, which has one input `[-1,1]` for each column."""
    table: dict[str, list[Any]] = {"age": [33, 44, 55], "city": ["Köln", "Ulm", "Bonn"]}
    kinds = {"age": "INT64", "city": "BYTES"}
    columns = tuple(TensorSpec.make(n, kind, (-1, 1)) for n, kind in kinds.items())
    made = ModelCodec(ModelSpec("m", "1", columns, columns))
    for rows in (3, 1):
        part = {name: column[:rows] for name, column in table.items()}
        records = [{name: part[name][row] for name in part} for row in range(rows)]
        for body in ({"instances": records}, {"inputs": part}):
            request, _ = decode_predict(made, [json.dumps(body).encode()])
            assert [t.shape for t in request.inputs.values()] == [(rows, 1)] * 2
            ages = np.frombuffer(b"".join(request.inputs["age"].parts), np.int64)
            assert ages.tolist() == table["age"][:rows]


def test_outputs_without_rows_have_no_instances() -> None:
    with pytest.raises(NotRepresentable, match="for 2 instances; send 'inputs'"):
        encode("instances", [1.0, 2.0, 3.0], [b"a", b"b"])


def test_another_method_and_other_forms(gateway: ServedGateway) -> None:
    """What newcomers send is answered with the form that works."""
    for path in ("/v1/models/affine:predict", "/v1/models/none:predict"):
        answer = gateway.client.get(path)
        assert answer.status_code == 405, answer.text
        assert "POST" in answer.headers["allow"]
        assert "does not take GET; it takes OPTIONS, POST" in answer.json()["error"]
    rows = b'[{"input": [1, 2, 3, 4]}]'
    json_type = {"content-type": "application/json"}
    for body, headers in ((rows, json_type), (rows, {}), (b'{"input": 1}', json_type)):
        answer = gateway.client.post(
            "/v1/models/affine/infer", content=body, headers=headers
        )
        assert answer.status_code == 400
        assert '{"inputs": {"input": […]}}' in answer.json()["error"]
