"""A JPEG file to an ONNX classifier: every way in, and a decoder that dies or hangs.

Covers: plugins/images/src/popgate_images/config.py,
plugins/images/src/popgate_images/decoder.py,
plugins/images/src/popgate_images/decoder_process.py,
plugins/images/src/popgate_images/plan.py,
plugins/images/src/popgate_images/planning.py,
plugins/images/src/popgate_images/wire.py.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from PIL import Image

from popgate import AsyncClient, Client
from tests.app.api.test_server_metrics import value
from tests.app.served import ServedGateway, run_popgate
from tests.app.test_serving import alive
from tests.support import until

GRAPH = """
<ir_version: 10, opset_import: ["": 20]>
colour (float[n,3,32,32] image) => (float[n,3] probabilities) {
  pooled = GlobalAveragePool(image)
  flat = Flatten(pooled)
  probabilities = Softmax<axis=-1>(flat)
}"""
CONFIG = """
labels = { probabilities = ["red", "green", "blue"] }
[image]
top = 2
max_pictures = 4
max_bytes = 1_000_000
timeout = 20
"""
IMPATIENT = CONFIG.replace("timeout = 20", "timeout = 0.5").replace(
    "top = 2", "top = 0"
)


def picture(colour: str, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (300, 200), colour).save(file, kind)
    return file.getvalue()


GREEN, RED = picture("#00ff00"), picture("#ff0000", "PNG")


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    for name, config in (("colour", CONFIG), ("impatient", IMPATIENT)):
        (root / name / "1").mkdir(parents=True)
        onnx.save(onnx.parser.parse_model(GRAPH), root / name / "1" / "model.onnx")
        (root / name / "config.toml").write_text(config)
    with ServedGateway(root, "--workers", str(request.param)) as gateway:
        yield gateway.wait_ready()


def post(served: ServedGateway, name: str = "colour", **options: Any) -> httpx.Response:
    return served.client.post(f"/v1/models/{name}/infer", **options)


def best(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    found: list[str] = response.json()["outputs"][0]["data"]
    return [one.split(":")[2] for one in found]


def decoders_of(served: ServedGateway) -> set[int]:
    """The processes that decode for a server, by their command lines."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            ours = str(served.process.pid) == parent
            if b"popgate_images.decoder_process" in command and ours:
                found.add(int(entry.name))
    return found


def test_pictures_count_as_what_they_become(tmp_path: Path) -> None:
    """A file of 100 bytes becomes 3 MiB here; four of them are more than there is."""
    (tmp_path / "large" / "1").mkdir(parents=True)
    graph = onnx.parser.parse_model(GRAPH.replace("32,32", "512,512"))
    onnx.save(graph, tmp_path / "large" / "1" / "model.onnx")
    (tmp_path / "large" / "config.toml").write_text(CONFIG)
    with ServedGateway(tmp_path, "--transfer-memory", "8MiB").wait_ready() as gateway:
        files = [("image", ("a.png", RED))]
        refused = post(gateway, "large", files=files * 4)
        assert refused.status_code == 503
        assert refused.json()["code"] == "transfer_memory_full"
        assert best(post(gateway, "large", files=files * 2))[0] == "red"
        until(lambda: value(gateway, "popgate_transfer_memory_bytes") == 0)


def test_a_file_as_body(served: ServedGateway, tmp_path: Path) -> None:
    assert best(post(served, content=GREEN))[0] == "green"
    typed = {"content-type": "image/png"}
    assert best(post(served, content=RED, headers=typed))[0] == "red"
    (tmp_path / "cat.jpg").write_bytes(GREEN)
    url = f"{served.url}/v1/models/colour/infer"
    for arguments in (["--data-binary", "@cat.jpg"], ["-F", "image=@cat.jpg"]):
        answer = subprocess.run(
            ["curl", "-sS", url, *arguments],
            cwd=tmp_path, capture_output=True, check=True,
        )  # fmt: skip
        assert b":green" in answer.stdout


def test_several_files(served: ServedGateway) -> None:
    files = [("image", ("a", GREEN)), ("image", ("b", RED))]
    found = best(post(served, files=files))
    assert (found[0], found[2]) == ("green", "red")


def test_json_with_base64(served: ServedGateway) -> None:
    text = base64.b64encode(GREEN).decode()
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [text],
              "parameters": {"content_type": "base64"}}  # fmt: skip
    answer = post(served, json={"inputs": [tensor]}).json()["outputs"][0]
    assert int(np.argmax(answer["data"])) == 1


def test_predict_with_base64(served: ServedGateway) -> None:
    green, red = ({"b64": base64.b64encode(one).decode()} for one in (GREEN, RED))
    for instances in ([green, red], [{"image": green}, {"image": red}]):
        answer = served.client.post(
            "/v1/models/colour:predict", json={"instances": instances}
        )
        assert answer.status_code == 200, answer.text
        assert np.argmax(answer.json()["predictions"], 1).tolist() == [1, 0]
    mixed = {"instances": [green, 3]}
    refused = served.client.post("/v1/models/colour:predict", json=mixed)
    assert refused.status_code == 400


def test_both_clients_and_the_commands(served: ServedGateway, tmp_path: Path) -> None:
    with Client(served.url) as client:
        two = client.infer("colour", [GREEN, RED])["probabilities"]
        assert two.argmax(1).tolist() == [1, 0]
        assert client.infer("colour", GREEN)["probabilities"].argmax() == 1

    async def ask() -> Any:
        async with AsyncClient(served.url) as client:
            return (await client.infer("colour", image=RED))["probabilities"]

    assert asyncio.run(ask()).argmax() == 0
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "cat.jpg").write_bytes(GREEN)
    (tmp_path / "some" / "dog.png").write_bytes(RED)
    given = f"image=@{tmp_path}/some/cat.jpg"
    url = "--url", served.url
    done = run_popgate("infer", "colour", "--input", given, *url)
    assert "0.57" in done.stdout, done.stdout + done.stderr
    results = tmp_path / "results.jsonl"
    folder = tmp_path / "some"
    done = run_popgate("batch", "colour", "-i", folder, "-o", results, *url)
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    found = {row["file"]: np.argmax(row["outputs"]["probabilities"]) for row in rows}
    assert found == {"cat.jpg": 1, "dog.png": 0}, done.stderr


def test_the_model_says_that_it_takes_files(served: ServedGateway) -> None:
    for path in ("/v1/models/colour", "/v2/models/colour"):
        described = served.client.get(path).json()
        assert described["inputs"][0]["files"] is True
        assert "files" not in described["outputs"][0]


def test_numbers_still_come_in(served: ServedGateway) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((2, 3, 32, 32), np.float32))
    npy = {"content-type": "application/x-npy"}
    found = np.load(
        io.BytesIO(post(served, content=file.getvalue(), headers=npy).content)
    )
    np.testing.assert_allclose(found, np.full((2, 3), 1 / 3), rtol=1e-6)


def test_all_values_if_the_answer_is_an_array(served: ServedGateway) -> None:
    accept = {"accept": "application/x-npy"}
    answer = post(served, content=GREEN, headers=accept)
    assert np.load(io.BytesIO(answer.content)).shape == (1, 3)


def test_what_is_refused(served: ServedGateway) -> None:
    answer = post(served, content=b"no picture")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
    assert "picture 0 of input 'image': expected one of JPEG" in answer.json()["error"]
    files = [("image", ("a", GREEN)), ("image", ("b", b"bad"))]
    assert "picture 1" in post(served, files=files).json()["error"]
    files = [("image", ("a", GREEN))] * 5
    assert "expected at most 4" in post(served, files=files).json()["error"]
    large = post(served, content=GREEN + bytes(1_000_000))
    assert "max_bytes in the section [image]" in large.json()["error"]


def test_a_decoder_that_is_killed(served: ServedGateway) -> None:
    assert best(post(served, content=GREEN))
    for pid in decoders_of(served):
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, served, content=GREEN)
        url = "/v1/models/colour"
        until(lambda: _in_flight(served, "colour"), url)
        for pid in decoders_of(served):
            os.kill(pid, signal.SIGKILL)
        answer = asked.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "decoder_lost")
    assert best(post(served, content=GREEN))[0] == "green"


def test_a_decoder_that_died_while_it_was_idle(served: ServedGateway) -> None:
    assert best(post(served, content=GREEN))
    killed = decoders_of(served)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, killed)))
    assert best(post(served, content=GREEN))[0] == "green"


def test_a_decoder_that_hangs(served: ServedGateway) -> None:
    assert post(served, "impatient", content=GREEN).status_code == 200
    hung = decoders_of(served)
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    answer = post(served, "impatient", content=GREEN)
    assert (answer.status_code, answer.json()["code"]) == (
        422,
        "picture_takes_too_long",
    )
    assert not hung & decoders_of(served)
    answer = post(served, "impatient", content=GREEN)
    assert np.argmax(answer.json()["outputs"][0]["data"]) == 1


def _in_flight(served: ServedGateway, name: str) -> bool:
    text = served.client.get("/metrics").text
    lines = [line for line in text.splitlines() if "requests_in_flight{" in line]
    return any(f'"{name}"' in line and float(line.split()[-1]) > 0 for line in lines)


def test_without_pillow(tmp_path: Path) -> None:
    (tmp_path / "models" / "colour" / "1").mkdir(parents=True)
    root = tmp_path / "models"
    onnx.save(onnx.parser.parse_model(GRAPH), root / "colour" / "1" / "model.onnx")
    (root / "colour" / "config.toml").write_text("[image]\n")
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'PIL' else find(n, *a)\n"
    )
    with ServedGateway(root, PYTHONPATH=str(tmp_path)) as gateway:
        gateway.wait_line("popgate[images]")
        reason = gateway.client.get("/v1/models/colour").json()["reason"]
    assert "pip install 'popgate[images]'" in reason
