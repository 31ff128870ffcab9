"""Processes that get no more memory: 503, and everything again when they do."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from popef_io import DataType
from tests.app.served import Serve, ServedGateway
from tests.engine import models
from tests.engine.models import Port
from tests.support import WAIT

MIB = 1 << 20
TIME = 10 * WAIT
ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]


def fill(root: Path) -> None:
    models.affine(root / "affine.popef")
    models.text(root / "text.popef")
    expanding(root / "expanding.popef")
    heavy(root / "heavy.popef")


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    # A million strings take the gateway minutes if its branches are counted.
    return serve(fill, "--request-timeout", str(TIME))


@contextmanager
def limited(pid: int, more: int) -> Iterator[None]:
    """A process that may have so many bytes of memory more."""
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    most = size * resource.getpagesize() + more
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))


@pytest.mark.parametrize("kind", ["numbers", "strings"])
def test_a_document_for_which_the_gateway_has_no_memory(
    gateway: ServedGateway, kind: str
) -> None:
    name = {"numbers": "affine", "strings": "text"}[kind]
    rows, texts = np.full((150_000, 4), 0.125).tolist(), ["abcdefgh"] * 1_000_000
    data = rows if kind == "numbers" else texts
    body = json.dumps({"inputs": {"input": data}}).encode()
    path = f"/v1/models/{name}/infer"
    gateway.infer("affine", input=ROW)
    with limited(gateway.process.pid, 24 * MIB):
        answer = gateway.client.post(path, content=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "out_of_memory"), (
        answer.text
    )
    assert "no memory for the request" in answer.json()["error"]
    assert answer.headers["retry-after"] == "1"
    answer = gateway.client.post(path, content=body, timeout=TIME)
    assert answer.status_code == 200
    assert gateway.infer("affine", input=ROW)["output"] == AFFINE


def test_a_run_for_which_the_device_has_no_memory(gateway: ServedGateway) -> None:
    (device,) = gateway.client.get("/v1/devices").json()["devices"]
    assert gateway.infer("expanding", x=[3.0], n=[2])["y"] == [3.0]
    count = 256 * MIB
    with limited(device["pid"], 128 * MIB):
        body = {"inputs": {"x": [3.0], "n": [count]}}
        answer = gateway.client.post("/v1/models/expanding/infer", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "out_of_memory"), (
        answer.text
    )
    assert "Failed to allocate memory" in answer.json()["error"]
    assert gateway.infer("expanding", x=[3.0], n=[2])["y"] == [3.0]


def test_a_load_for_which_the_device_has_no_memory(gateway: ServedGateway) -> None:
    (device,) = gateway.client.get("/v1/devices").json()["devices"]
    path = "/v1/models/heavy/load"
    assert gateway.client.post("/v1/models/heavy/unload").status_code == 200
    with limited(device["pid"], 40 * MIB):
        answer = gateway.client.post(path)
    assert (answer.status_code, answer.json()["code"]) == (503, "out_of_memory"), (
        answer.text
    )
    assert answer.headers["retry-after"] == "1"
    assert gateway.client.post(path).status_code == 200
    assert gateway.infer("heavy", x=[[1.0]])["y"][:2] == [2.0, 2.0]


def expanding(path: Path) -> None:
    """The highest of as many copies of x as n says."""
    models.write_model(
        path,
        [
            helper.make_node("Expand", ["x", "n"], ["many"]),
            helper.make_node("ReduceMax", ["many"], ["y"], keepdims=0),
        ],
        [Port("x", (1,)), Port("n", (1,), DataType.S64)],
        [Port("y", ())],
    )


def heavy(path: Path) -> None:
    """y = x * 2, with 64 MiB of twos."""
    models.write_model(
        path,
        [
            helper.make_node("Mul", ["x", "twos"], ["all"]),
            helper.make_node("Slice", ["all", "from", "to", "axis"], ["y"]),
        ],
        [Port("x", (1, 1))],
        [Port("y", (1, 4))],
        constants={
            "twos": np.full((1, 16 * MIB), 2, np.float32),
            **{k: np.array([v]) for k, v in (("from", 0), ("to", 4), ("axis", 1))},
        },
    )
