"""Models in Python run by interpreters of other versions, beside those of the server's.

`POPGATE_TEST_PYTHON` names interpreters that have numpy, msgpack and msgspec, with
colons between them; without it there are none to try.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.app.python_sources import write
from tests.app.served import ServedGateway, add

OTHERS = [path for path in os.environ.get("POPGATE_TEST_PYTHON", "").split(":") if path]
MODEL = """
import asyncio
import platform
import numpy as np
from popgate import Model

class Versions(Model):
    inputs = {"x": "FP32[-1,4]"}
    outputs = {"y": "FP32[-1,4]", "versions": "BYTES[2]"}

    def load(self, context):
        self.models = context.models

    async def __call__(self, x):
        found = await self.models["onnx"].call_async(input=x)
        versions = [platform.python_version(), np.__version__]
        return {"y": found["output"], "versions": versions}
"""
TRITON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for number in range(value[0]):
                out = pb_utils.Tensor("OUT", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    if not OTHERS:
        pytest.skip("POPGATE_TEST_PYTHON names no other interpreter")
    root = tmp_path_factory.mktemp("models")
    add(root, "onnx")
    write(root, "own", MODEL)
    for number, path in enumerate(OTHERS):
        write(root, f"other{number}", MODEL, f'python = "{path}"\nmodels = ["onnx"]\n')
        write(root, f"triton{number}", TRITON, f'python = "{path}"\n')
    with ServedGateway(root, "--allow-python") as gateway:
        yield gateway.wait_ready()


def versions(gateway: ServedGateway, name: str) -> Any:
    row = [[1.0, 2.0, 3.0, 4.0]]
    found = gateway.infer(name, x=row)
    assert found["y"] == [3.0, 5.0, 7.0, 9.0]
    return found["versions"]


def test_each_model_has_the_versions_of_its_interpreter(served: ServedGateway) -> None:
    assert versions(served, "own") == [platform.python_version(), np.__version__]
    code = "import numpy, platform; print(platform.python_version(), numpy.__version__)"
    for number, path in enumerate(OTHERS):
        said = subprocess.run([path, "-c", code], capture_output=True, text=True)
        assert versions(served, f"other{number}") == said.stdout.split()


def test_files_for_triton_run_there_too(served: ServedGateway) -> None:
    for number, _ in enumerate(OTHERS):
        response = served.client.post(
            f"/v2/models/triton{number}/infer",
            json={"inputs": {"IN": [3]}},
            headers={"Accept": "text/event-stream"},
        )
        assert response.text.count('"OUT"') == 3, response.text
