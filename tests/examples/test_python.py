"""The models in Python that people copy do what is said of them."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.served import ServedGateway, run_popgate

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("examples") / "python"
    shutil.copytree(EXAMPLES / "python", root)
    digits = root / "digits" / "1"
    digits.mkdir(parents=True)
    shutil.copy(EXAMPLES / "digits" / "digits.onnx", digits)
    with ServedGateway(root, "--allow-python") as gateway:
        yield gateway.wait_ready()


def test_text_in_and_score_out(served: ServedGateway) -> None:
    found = served.infer("sentiment", text=["Great, really GREAT!", "not good", ""])
    assert found["tokens"] == [3, 2, 0]
    assert found["score"] == pytest.approx([np.tanh(3.0), np.tanh(0.5), 0.0])


def test_reviews_in_and_the_best_one_out(served: ServedGateway) -> None:
    body = {"reviews": ["not good", "great"]}
    answer = served.client.post("/v1/reviews", json=body)
    assert answer.json() == {"review": "great", "score": pytest.approx(np.tanh(1.5))}
    assert served.client.post("/v1/reviews", json={"reviews": []}).status_code == 422


def test_an_image_file_in_and_a_label_out(served: ServedGateway) -> None:
    png, label = _digit()
    found = _bytes(served, "read_digit", "file", [png, png])
    assert found["label"] == [label, label]
    response = _post(served, "read_digit", "file", [b"no image"])
    assert response.status_code == 400
    assert "this is no image that Pillow knows" in response.text


def test_a_router_calls_one_of_two(served: ServedGateway) -> None:
    png, label = _digit()
    assert _bytes(served, "router", "data", [png])["answer"] == [label]
    found = _bytes(served, "router", "data", [b"awful"])
    assert found["model"] == ["sentiment"]
    assert found["answer"][0] < -0.9


def test_words_come_one_by_one(served: ServedGateway) -> None:
    response = served.client.post(
        "/v2/models/words/infer",
        json={"inputs": {"text": ["one two three"]}},
        headers={"Accept": "text/event-stream"},
    )
    lines = [x for x in response.text.splitlines() if x.startswith("data: ")]
    events = [json.loads(line[6:])["outputs"] for line in lines]
    words = [outputs[0]["data"][0] for outputs in events]
    assert words == ["one", "two", "three"]


def test_a_pipeline_of_scikit_learn_from_a_file(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib", reason="scikit-learn is not installed")
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    flowers = datasets.load_iris()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    model.fit(flowers.data, flowers.target)
    file = tmp_path / "flowers.joblib"
    joblib.dump(model, file)
    root = tmp_path / "models"
    done = run_popgate("pack", "sklearn", file, "-o", root / "flowers")
    assert done.returncode == 0, done.stderr
    with ServedGateway(root, "--allow-python") as gateway:
        gateway.wait_ready()
        some = flowers.data[::10]
        found = gateway.infer("flowers", x=some.tolist())
        assert found["label"] == model.predict(some).tolist()


def _digit() -> tuple[bytes, int]:
    """An image file of a digit, and which it is."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.load(EXAMPLES / "digits" / "test_images.npy")[0, 0]
    label = int(np.load(EXAMPLES / "digits" / "test_labels.npy")[0])
    dark = (255 - pixels / 16 * 255).astype(np.uint8)
    file = io.BytesIO()
    image.fromarray(dark).resize((8, 8)).save(file, "PNG")
    return file.getvalue(), label


def _post(gateway: ServedGateway, model: str, name: str, values: list[bytes]) -> Any:
    texts = [base64.b64encode(value).decode() for value in values]
    tensor = {
        "name": name,
        "datatype": "BYTES",
        "shape": [len(texts)],
        "data": texts,
        "parameters": {"content_type": "base64"},
    }
    return gateway.client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]})


def _bytes(gateway: ServedGateway, model: str, name: str, values: list[bytes]) -> Any:
    response = _post(gateway, model, name, values)
    assert response.status_code == 200, response.text
    return {o["name"]: o["data"] for o in response.json()["outputs"]}
