"""Clients as Triton's examples are, each as a program of its own."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from tests.app.served import ServedGateway
from tests.support import WAIT
from tests.warm import forked

EXAMPLES = Path(__file__).parent / "triton_examples"
# It needs a server of another mode.
CONTROL = "simple_http_model_control"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != CONTROL)
# What they do often by themselves, they do less often here.
OPTIONS = {"http_requests": ("--chunks", "20000")}


def run(served: ServedGateway, name: str, *options: str) -> str:
    url = served.url.removeprefix("http://")
    done = subprocess.run(
        forked(EXAMPLES / f"{name}.py", "-u", url, *options),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_example(triton: ServedGateway, name: str) -> None:
    assert run(triton, name, *OPTIONS.get(name, ())).startswith("PASS")


def test_sequences_with_identifiers(triton: ServedGateway) -> None:
    name = "simple_http_sequence_sync_infer_client"
    assert run(triton, name, "-d", "-o", "5").startswith("PASS")


def test_model_control(tmp_path: Path) -> None:
    options = ("--profile", "triton", "--cache-dir", str(tmp_path))
    mode = ("--model-control-mode", "explicit", "--metrics-port", "0")
    with ServedGateway(None, *options, *mode) as gateway:
        gateway.wait_line("docs")
        assert run(gateway, CONTROL).startswith("PASS")


def test_shared_memory_is_closed_unless_asked_for(tmp_path: Path) -> None:
    options = ("--profile", "triton", "--cache-dir", str(tmp_path), "--port", "0")
    with ServedGateway(None, *options, "--metrics-port", "0") as gateway:
        path = "/v2/systemsharedmemory/region/io/register"
        body = {"key": "/io", "offset": 0, "byte_size": 16}
        answer = gateway.client.post(path, json=body)
        assert answer.status_code != 200
        assert "shared memory is disabled" in answer.json()["error"]


def test_a_raised_limit_holds_for_json_too(compile_cache: Path) -> None:
    """Below it, plain and compressed; beyond it the words that scripts look for."""
    limit = 80 << 20
    # The folder of the fixture `triton`, whose models are compiled.
    cache = str(compile_cache / "triton")
    options = ["--profile", "triton", "--cache-dir", cache, "--port", "0"]
    options += ["--metrics-port", "0", "--http-max-input-size", str(limit)]
    with ServedGateway(None, *options) as gateway:
        gateway.wait_ready()
        path = "/v2/models/simple_identity/infer"
        tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "BYTES", "data": ["x"]}
        document = json.dumps({"inputs": [tensor]}).encode()
        for size, status in ((66 << 20, 200), (81 << 20, 400)):
            body = document.ljust(size)  # JSON may end with spaces
            packed, headers = gzip.compress(body, 1), {"content-encoding": "gzip"}
            for answer in (
                gateway.client.post(path, content=body),
                gateway.client.post(path, content=packed, headers=headers),
            ):
                assert answer.status_code == status, answer.text
                if status != 200:
                    assert answer.json()["code"] == "body_too_large"
                    assert "exceeds the maximum allowed" in answer.json()["error"]
