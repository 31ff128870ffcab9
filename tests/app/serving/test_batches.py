"""What requests may bring over HTTP: any number of rows, iterations, parts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from app.plugins import ROUTES, plugin_names
from tests.app.served import Serve, ServedGateway, add
from tests.engine import models
from tests.engine.fused import write_fused
from tests.engine.onnx_models import FLOAT, node, onnx_model, value
from tests.engine.transformer import texts, transformer

#: Only a full batch runs before the tests are over, so nothing is run to warm up.
GATHERED = """
max_batch_size = 8
max_queue_delay = 60
[warmup]
enabled = false
"""


def fill(root: Path) -> None:
    models.affine(root / "fixed.popef", batch_size=4)
    models.regular(root / "iterations.popef", (3, 4), iterations=4)
    models.regular(root / "rows.popef", (3, 4), iterations=2, batching="rows")
    models.regular(root / "exact.popef", (3, 4))
    write_fused(root / "fused.popef")
    models.write_graph(root / "repeated.popef", repeated())
    add(
        root,
        "columns",
        lambda path: models.regular(path, (3, 4)),
        config="batching_dim = 1",
    )
    add(root, "whole", write_fused, config="optional_inputs = false")
    models.write_graph(root / "texts.popef", transformer(), "rows")
    add(
        root,
        "gathered",
        lambda path: models.write_graph(path, transformer(), "rows"),
        config=GATHERED,
    )


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    return serve(fill)


def repeated() -> Any:
    """A single row of one input is repeated for all rows of the other."""
    infos = [value(name, FLOAT, [None, 3]) for name in ("x", "z", "y")]
    return onnx_model([node("Add", ["x", "z"], ["y"])], infos[:2], infos[2:])


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def ask(
    gateway: ServedGateway, model: str, inputs: dict[str, Any], **document: Any
) -> httpx.Response:
    given = {name: np.asarray(value).tolist() for name, value in inputs.items()}
    url = f"/v1/models/{model}/infer"
    return gateway.client.post(url, json={"inputs": given, **document})


def arrays(response: httpx.Response) -> dict[str, np.ndarray[Any, Any]]:
    assert response.status_code == 200, response.text
    return {
        output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
        for output in response.json()["outputs"]
    }


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("fixed", (1, 3, 4, 9)), ("iterations", (3, 12, 15)), ("rows", (1, 3, 6, 8))],
)
def test_as_many_rows_as_come(
    gateway: ServedGateway, model: str, sizes: tuple[int, ...]
) -> None:
    for rows in sizes:
        found = arrays(ask(gateway, model, {"input": numbers(rows, 4)}))
        np.testing.assert_array_equal(found["output"], numbers(rows, 4) * 2 + 1)


def test_metadata_says_what_may_come(gateway: ServedGateway) -> None:
    for model, shape in (
        ("fixed", [-1, 4]),
        ("iterations", [-1, 4]),
        ("columns", [3, -1]),
        ("exact", [3, 4]),
    ):
        metadata = gateway.client.get(f"/v2/models/{model}").json()
        assert metadata["inputs"][0]["shape"] == shape
        assert metadata["outputs"][0]["shape"] == shape
    example = gateway.client.get("/v1/models/iterations").json()["example"]
    assert gateway.client.post(
        "/v1/models/iterations/infer", json=example
    ).is_success, "the example works"
    if plugin_names(ROUTES):
        config = gateway.client.get("/v2/models/fused/config").json()
        assert all(tensor["optional"] for tensor in config["input"])


def test_what_does_not_fit_is_refused(gateway: ServedGateway) -> None:
    for model, shape, words in (
        ("iterations", (4, 4), "expects a multiple of 3 in dimension 0"),
        ("exact", (6, 4), "Expected [3,4], got [6,4]"),
        ("columns", (4, 4), "Expected [3,-1], got [4,4]"),
        ("fixed", (0, 4), "expects any size from 1"),
    ):
        response = ask(gateway, model, {"input": numbers(*shape)})
        assert response.status_code == 400, response.text
        assert words in response.json()["error"]


def test_rows_in_another_dimension(gateway: ServedGateway) -> None:
    for size in (1, 4, 7):
        found = arrays(ask(gateway, "columns", {"input": numbers(3, size)}))
        np.testing.assert_array_equal(found["output"], numbers(3, size) * 2 + 1)


def test_one_model_of_a_fused_one(gateway: ServedGateway) -> None:
    first = {"index": [0], "sum/a": numbers(3, 4), "sum/b": numbers(3, 4)}
    second = {"index": [1], "scale/input": numbers(2, 4) + 1}
    assert list(arrays(ask(gateway, "fused", first))) == ["sum/output"]
    for document in ({}, {"outputs": [{"name": "scale/output"}]}):
        found = arrays(ask(gateway, "fused", second, **document))
        assert list(found) == ["scale/output"]
        np.testing.assert_array_equal(found["scale/output"], (numbers(2, 4) + 1) * 2)
    packed = gateway.client.post(
        "/v1/models/fused/infer",
        json={"inputs": {k: np.asarray(v).tolist() for k, v in second.items()}},
        headers={"accept": "application/msgpack"},
    )
    assert packed.status_code == 200
    assert b"scale/output" in packed.content
    assert b"sum/output" not in packed.content


def test_wrong_parts_of_a_fused_model_are_refused(gateway: ServedGateway) -> None:
    second = {"index": [1], "scale/input": numbers(2, 4)}
    for inputs, document, words in (
        ({"index": [1], "sum/a": numbers(3, 4)}, {}, "'scale/input', which was not"),
        (second, {"outputs": [{"name": "sum/output"}]}, "'sum/output' was requested"),
        ({}, {}, "expected 4 inputs but got 0"),
    ):
        response = ask(gateway, "fused", inputs, **document)
        assert response.status_code == 400, response.text
        assert words in response.json()["error"]
    response = ask(gateway, "whole", second)
    assert "missing required input(s)" in response.json()["error"]
    everything = second | {"sum/a": numbers(3, 4), "sum/b": numbers(3, 4)}
    assert ask(gateway, "whole", everything).status_code == 200, "as the model wrote"


def test_a_single_row_may_be_repeated_where_the_model_does_so(
    gateway: ServedGateway,
) -> None:
    assert not gateway.client.get("/v1/models/repeated").json()["batching"]
    x, z = numbers(4, 3), numbers(1, 3)
    for first, second in ((x, z), (z, x), (x, x)):
        found = arrays(ask(gateway, "repeated", {"x": first, "z": second}))
        np.testing.assert_array_equal(found["y"], first + second)


def runs(gateway: ServedGateway, model: str) -> int:
    stats = gateway.client.get(f"/v2/models/{model}/stats").json()
    return int(stats["model_stats"][0]["execution_count"])


def test_texts_of_different_lengths_are_never_in_one_run(
    gateway: ServedGateway,
) -> None:
    assert gateway.client.get("/v1/models/texts").json()["batching"]
    session = ort.InferenceSession(transformer().SerializeToString())
    given = [texts(i, rows=1 + i % 3, length=3 + i % 4) for i in range(192)]
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda g: ask(gateway, "texts", g), given))
    for inputs, response in zip(given, answers, strict=True):
        found = arrays(response)
        for name, wanted in zip(
            ("last", "logits"), session.run(None, inputs), strict=True
        ):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)


def test_texts_of_one_length_run_together(gateway: ServedGateway) -> None:
    """It waits for eight rows, longer than any test: they come from eight clients."""
    before = runs(gateway, "gathered")
    with ThreadPoolExecutor(8) as clients:
        answers = list(
            clients.map(lambda i: ask(gateway, "gathered", texts(i, 1, 5)), range(8))
        )
    assert [response.status_code for response in answers] == [200] * 8
    assert runs(gateway, "gathered") == before + 1
