"""A model with an input for each column, as scikit-learn exports it: batched because
the plugin proves that rows stay apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from plugins.row_proof.tests.test_proof import pipeline
from popgate_onnx.compiler import compile_model
from tests.app.served import Serve, ServedGateway
from tests.app.serving.test_batches import ask, runs


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    return serve(lambda root: compile_model(pipeline(), root / "table.popef"))


def table(seed: int) -> dict[str, Any]:
    """From one to four rows of the columns of the model `table`."""
    random = np.random.default_rng(seed)
    shape = (1 + seed % 4, 1)
    return {
        "a": random.normal(30, 10, shape).astype(np.float32),
        "b": random.normal(20, 5, shape).astype(np.float32),
        "u": random.choice(["m", "f"], shape).astype(object),
        "v": random.choice(["S", "C"], shape).astype(object),
    }


def test_columns_of_many_clients_run_together_and_stay_apart(
    gateway: ServedGateway,
) -> None:
    about = gateway.client.get("/v1/models/table").json()
    assert about["batching"]
    session = ort.InferenceSession(pipeline().SerializeToString())

    def ask_for(seed: int) -> tuple[list[Any], httpx.Response]:
        return session.run(["label", "p"], table(seed)), ask(
            gateway, "table", table(seed)
        )

    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(ask_for, range(256)))
    for (labels, scores), response in answers:
        assert response.status_code == 200, response.text
        given = {o["name"]: o for o in response.json()["outputs"]}
        assert given["label"]["data"] == labels.tolist()
        actual = np.array(given["p"]["data"], np.float32).reshape(scores.shape)
        np.testing.assert_allclose(actual, scores, rtol=1e-5, atol=1e-6)


def test_columns_must_have_as_many_rows_as_each_other(gateway: ServedGateway) -> None:
    before = runs(gateway, "table")
    response = ask(gateway, "table", table(3) | {"u": [["m"]]})
    assert response.status_code == 400
    assert response.json()["error"] == (
        "input 'u' batch size does not match other inputs for 'table': it has 1 row, "
        "'a' has 4"
    )
    assert runs(gateway, "table") == before, "it is refused before it is queued"
