"""Inputs that requests may leave out: ``optional: true`` of a ``config.pbtxt``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import helper, numpy_helper

from plugins.triton.tests.folders import tensors, write_config, write_onnx
from popgate_admin.preview import preview_repository
from popgate_onnx.compile_cache import OnnxCompileCache
from tests.app.served import NOTHING_TAKEN, Serve, ServedGateway

OPTIONAL = "dims: [ {} ] optional: true"


def _fill(root: Path) -> None:
    table = np.arange(4, dtype=np.float32).reshape(2, 2)
    row = np.array([[10, 20]], np.float32)
    words = np.array(["a", "b"], object)
    for name, initializer, dims, batch in (
        ("default", table, [2, 2], 0),
        ("rows", row, [None, 2], 8),
        ("constant", table, [2, 2], 0),
    ):
        shape = "2" if batch else "2, 2"
        write_onnx(
            root,
            name,
            [helper.make_node("Add", ["INPUT", "INITIALIZER"], ["OUTPUT"])],
            [("INPUT", "FLOAT", dims), ("INITIALIZER", "FLOAT", dims)],
            [("OUTPUT", "FLOAT", dims)],
            initializers=[numpy_helper.from_array(initializer, "INITIALIZER")],
        )
        ins = {"INPUT": ("FP32", shape)}
        if name != "constant":
            ins["INITIALIZER"] = ("FP32", OPTIONAL.format(shape))
        out = tensors("output", {"OUTPUT": ("FP32", shape)})
        text = f"max_batch_size: {batch} {tensors('input', ins)} {out}"
        write_config(root, name, text)
    write_onnx(
        root,
        "words",
        [helper.make_node("Identity", ["WORDS"], ["OUT"])],
        [("WORDS", "STRING", [2])],
        [("OUT", "STRING", [2])],
        initializers=[numpy_helper.from_array(words, "WORDS")],
    )
    write_config(
        root, "words", tensors("input", {"WORDS": ("STRING", OPTIONAL.format("2"))})
    )
    ports = [(n, "INT32", [None, 2]) for n in ("X", "UNUSED", "NEEDED")]
    write_onnx(
        root,
        "unused",
        [helper.make_node("Add", ["X", "NEEDED"], ["Y"])],
        ports,
        [("Y", "INT32", [None, 2])],
    )
    optional = {n: ("INT32", OPTIONAL.format("2")) for n in ("UNUSED", "NEEDED")}
    every = tensors("input", {"X": ("INT32", "2"), **optional})
    write_config(root, "unused", f"max_batch_size: 4 {every}")


@pytest.fixture(scope="module")
def served(serve: Serve) -> ServedGateway:
    return serve(_fill)


def _post(served: ServedGateway, name: str, **inputs: Any) -> httpx.Response:
    return served.client.post(f"/v1/models/{name}/infer", json={"inputs": inputs})


def test_an_initializer_is_the_default(served: ServedGateway) -> None:
    ones = [[1, 1], [1, 1]]
    assert served.infer("default", INPUT=ones)["OUTPUT"] == [1, 2, 3, 4]
    given = served.infer("default", INPUT=ones, INITIALIZER=[[5, 5], [6, 6]])
    assert given["OUTPUT"] == [6, 6, 7, 7]
    config = served.client.get("/v2/models/default/config").json()
    assert {t["name"]: t["optional"] for t in config["input"]} == {
        "INPUT": False,
        "INITIALIZER": True,
    }


def test_it_stays_a_constant_where_it_is_not_declared(served: ServedGateway) -> None:
    metadata = served.client.get("/v2/models/constant").json()
    assert [t["name"] for t in metadata["inputs"]] == ["INPUT"]


def test_one_default_for_every_row(served: ServedGateway) -> None:
    ones = [[1, 1], [2, 2], [3, 3]]
    assert served.infer("rows", INPUT=ones)["OUTPUT"] == [11, 21, 12, 22, 13, 23]


def test_a_request_without_inputs(served: ServedGateway) -> None:
    assert served.infer("words")["OUT"] == ["a", "b"]
    assert served.infer("words", WORDS=["c", "d"])["OUT"] == ["c", "d"]


def test_an_input_that_nothing_uses(served: ServedGateway) -> None:
    rows = [[1, 2], [3, 4]]
    assert served.infer("unused", X=rows, NEEDED=rows)["Y"] == [2, 4, 6, 8]
    found = served.infer("unused", X=rows, NEEDED=rows, UNUSED=rows)
    assert found["Y"] == [2, 4, 6, 8]
    response = _post(served, "unused", X=rows)
    assert response.status_code == 400
    assert (
        "expected number of inputs between 2 and 3 but got 1 inputs for model 'unused'"
    ) in response.text


def test_other_ways_to_leave_it_out(served: ServedGateway) -> None:
    import tritonclient.http as http

    body = {"instances": [[1, 1], [2, 2]]}
    answer = served.client.post("/v1/models/rows:predict", json=body).json()
    assert answer == {"predictions": [[11.0, 21.0], [12.0, 22.0]]}
    client = http.InferenceServerClient(served.url.removeprefix("http://"))
    try:
        for factor in (1, 2, 3):  # the head of the first is known to the others
            tensor = http.InferInput("INPUT", [2, 2], "FP32")
            tensor.set_data_from_numpy(np.full((2, 2), factor, np.float32))
            found = client.infer("rows", [tensor]).as_numpy("OUTPUT")
            assert found.tolist() == [[10 + factor, 20 + factor]] * 2
    finally:
        client.close()
    document = served.client.get("/openapi.json").text
    assert '"required":["INPUT"]' in document.replace(" ", "")


def test_what_the_model_needs_all_the_same_is_noted(tmp_path: Path) -> None:
    root = tmp_path / "models"
    _fill(root)
    with closing(OnnxCompileCache(tmp_path / "cache")) as cache:
        found = preview_repository(root, cache, NOTHING_TAKEN)
    assert not found.all_problems
    (note,) = [note for model in found.models for note in model.notes]
    assert note.startswith(
        "unused/1: 'NEEDED' is declared optional, but the model needs it"
    )
