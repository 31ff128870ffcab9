"""Loads that bring a configuration and files: parsed, and over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidRequest
from app.repository.load_overrides import MAX_FILES, LoadOverrides, parse_load_overrides
from tests.app.served import ServedGateway
from tests.engine import models

ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]
CENTRED = [0.0, 0.0, 0.0, 0.0]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_what_a_load_may_bring() -> None:
    assert parse_load_overrides("m", {}) == LoadOverrides()
    found = parse_load_overrides(
        "m", {"config": "{}", "file:1/m.onnx": b64(b"x"), "file:labels.txt": ""}
    )
    assert found == LoadOverrides("{}", {"1/m.onnx": b"x", "labels.txt": b""})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"config": {}}, "'config' must be JSON in a string, got dict"),
        ({"file:1/m.onnx": ""}, "files can only be given together with 'config'"),
        ({"config": "{}", "force": True}, "unexpected parameter 'force'"),
        ({"config": "{}", "file:1/m": 3}, "must be base64 in a string: got int"),
        ({"config": "{}", "file:1/m": "a*b="}, "must be base64 in a string"),
        *(
            ({"config": "{}", f"file:{path}": ""}, "must be file:<version>/<name>")
            for path in (
                "",
                "/etc/passwd",
                "../m.onnx",
                "1/../../m",
                "1/.hidden",
                "1//m",
                "1/m\n",
                "1/a b",
                "1/2/3/4/5",
                "1/" + "x" * 300,
            )
        ),
        (
            {"config": "{}", **{f"file:1/{i}": "" for i in range(MAX_FILES + 1)}},
            "1001 files",
        ),
    ],
)
def test_what_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_load_overrides("m", parameters)
    assert str(caught.value).startswith("failed to load 'm'")
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("models")
    models.affine(root / "m.popef")
    options = ("--cache-dir", str(cache), "--max-body-size", "1MiB")
    with ServedGateway(root, *options) as gateway:
        yield gateway.wait_ready()
        assert gateway.stop() == 0
    assert list((cache / "uploads").glob("*")) == []


def uploads(cache: Path) -> list[str]:
    """Names of the uploaded files there are."""
    found = (cache / "uploads").rglob("*.popef")
    return sorted(path.name for path in found)


def load(gateway: ServedGateway, name: str, **parameters: Any) -> Any:
    path = f"/v2/repository/models/{name}/load"
    return gateway.client.post(path, json={"parameters": parameters})


def test_a_config_has_the_last_word_until_the_next_load(served: ServedGateway) -> None:
    def config() -> Any:
        return served.client.get("/v2/models/m/config").json()

    before = config()
    change = {"max_batch_size": "6", "instance_group": [{"count": 3}], "timeout": 9}
    assert load(served, "m", config=json.dumps(change)).status_code == 200
    after = config()
    assert (before["max_batch_size"], after["max_batch_size"]) == (64, 6)
    assert after["instance_group"][0]["count"] == 3
    assert served.infer("m", input=ROW)["output"] == AFFINE
    assert served.client.post("/v1/models/m/load").status_code == 200
    assert config() == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "the config is not JSON"),
        ('{"max_batchsize": 3}', "unknown key 'max_batchsize'"),
        ('{"instance_group": [{"count": "many"}]}', "instance_group"),
        ('{"backend": "pytorch"}', "'pytorch' is not supported"),
    ],
)
def test_a_config_that_cannot_be_used_changes_nothing(
    served: ServedGateway, config: str, message: str
) -> None:
    answer = load(served, "m", config=config)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("failed to load 'm'")
    assert message in answer.json()["error"]
    assert served.infer("m", input=ROW)["output"] == AFFINE
    assert served.client.post("/v1/models/m/load").status_code == 200


def test_files_instead_of_those_of_the_folder(
    served: ServedGateway, tmp_path: Path, cache: Path
) -> None:
    import tritonclient.http as http

    content = models.mean_over_rows(tmp_path / "m.popef").read_bytes()
    client = http.InferenceServerClient(served.url.removeprefix("http://"))
    try:
        files = {"file:2/up.popef": content}
        client.load_model("m", config="{}", files=files)
        assert served.infer("m", input=ROW)["output"] == CENTRED
        assert client.get_model_metadata("m")["versions"] == ["2"]
        # A model that the folder has never heard of.
        client.load_model("new", config='{"name": "new"}', files=files)
        assert served.infer("new", input=ROW)["output"] == CENTRED
        assert uploads(cache) == ["up.popef"] * 2
        client.load_model("m", config="{}", files={"file:3/other.popef": content})
        assert uploads(cache) == ["other.popef", "up.popef"]
        client.load_model("m")
        assert served.infer("m", input=ROW)["output"] == AFFINE
        assert uploads(cache) == ["up.popef"]
        client.unload_model("new")
        assert uploads(cache) == []
        with pytest.raises(http.InferenceServerException, match="failed to poll from"):
            client.load_model("new")
    finally:
        client.close()


def test_files_that_fail_change_nothing_and_leave_nothing(
    served: ServedGateway, cache: Path
) -> None:
    bad = {"config": "{}", "file:1/x.popef": b64(b"not a container")}
    answer = load(served, "m", **bad)
    assert answer.status_code == 400
    assert "version 1: m/1/x.popef, blob 0, offset 0: not a" in answer.json()["error"]
    assert str(cache) not in answer.text
    assert served.infer("m", input=ROW)["output"] == AFFINE
    assert load(served, "a b", **bad).status_code == 404
    assert load(served, "m", config="{}", **{"file:../x": ""}).status_code == 400
    assert uploads(cache) == []
    assert served.client.post("/v1/models/m/load").status_code == 200


def test_an_upload_lives_through_a_lost_device(
    served: ServedGateway, tmp_path: Path, cache: Path
) -> None:
    import os
    import signal

    content = models.mean_over_rows(tmp_path / "m.popef").read_bytes()
    body = {"config": "{}", "file:1/kept.popef": b64(content)}
    assert load(served, "kept", **body).status_code == 200
    (device,) = served.client.get("/v1/devices").json()["devices"]
    os.kill(device["pid"], signal.SIGKILL)
    served.until("/v1/health/ready", 503)
    served.until("/v1/health/ready", 200)
    assert served.infer("kept", input=ROW)["output"] == CENTRED


def test_large_uploads_are_bounded(served: ServedGateway, cache: Path) -> None:
    before = uploads(cache)
    answer = load(served, "m", config="{}", **{"file:1/m.popef": "A" * (2 << 20)})
    assert answer.status_code == 413
    assert uploads(cache) == before
