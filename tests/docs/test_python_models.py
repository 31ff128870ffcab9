"""The models of docs/reference/python-models.md do what the page says."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import DeviceManager, ModelRunner, ModelRunnerConfig, PythonOptions
from popgate_python_files import read_python_model
from tests.app.served import ServedGateway
from tests.support import WAIT

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "python-models.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (models/\S+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize(
    ("path", "texts", "answer"),
    [
        ("models/sentiment/1/model.py", [b"great and fine", b"no"], {"score": [2, 0]}),
        ("models/length/1/model.py", [b"four", b""], {"output": [4, 0]}),
        ("models/summaries/1/model.py", [b"a b", b"no"], {"words": [2, 1]}),
    ],
)
def test_the_models_run(
    tmp_path: Path, path: str, texts: list[bytes], answer: dict[str, Any]
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(FILES[path])
    device = DeviceManager("cpu:1").create_python_device(PythonOptions())
    model = read_python_model(device, file)
    config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
    with ModelRunner(model, config) as runner:
        assert runner.batching
        found = runner.execute({"text": np.array(texts, object)})
        assert {name: list(value) for name, value in found.items()} == answer


def test_a_model_waits_for_all_rows_at_once(tmp_path: Path) -> None:
    all_there = threading.Barrier(3)

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            item = int(self.path.rpartition("/")[2])
            if item:
                all_there.wait(WAIT)
            self.send_response(200 if item else 404)
            self.end_headers()
            self.wfile.write(b"%d.5" % item)

    path = tmp_path / "models/prices/1/model.py"
    path.parent.mkdir(parents=True)
    # Its own time limit is not what is tested here.
    text = FILES["models/prices/1/model.py"].replace("timeout=2", f"timeout={WAIT}")
    path.write_text(text)
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        device = DeviceManager("cpu:1").create_python_device(PythonOptions())
        model = read_python_model(device, path, parameters={"url": url})
        config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
        with ModelRunner(model, config) as runner:
            found = runner.execute({"item": np.array([3, 0, 1, 2])})["price"]
        service.shutdown()
    np.testing.assert_array_equal(found, np.array([3.5, np.nan, 1.5, 2.5], np.float32))


def test_all_models_of_the_page_are_tested() -> None:
    names = [path.split("/")[1] for path in sorted(FILES)]
    assert names == ["counter", "length", "prices", "router", "sentiment", "summaries"]


CLASSIFIER = """
class Classifier:
    inputs = {"pixels": "FP32[-1,64]"}
    outputs = {"label": "INT64[-1]"}
    def __call__(self, pixels):
        return {"label": pixels.argmax(1)}
"""


def test_models_that_need_a_server(tmp_path: Path) -> None:
    for name in ("counter", "router", "classifier"):
        file = tmp_path / name / "1" / "model.py"
        file.parent.mkdir(parents=True)
        file.write_text(FILES.get(f"models/{name}/1/model.py", CLASSIFIER))
    with ServedGateway(tmp_path, "--allow-python") as gateway:
        gateway.wait_ready()
        pixels = np.eye(64)[[3, 7]].tolist()
        assert gateway.infer("router", pixels=pixels) == {"label": [3, 7]}
        response = gateway.client.post(
            "/v1/models/counter/infer",
            json={"inputs": {"n": [3]}},
            headers={"Accept": "text/event-stream"},
        )
        assert response.text.count("data: ") == 3
