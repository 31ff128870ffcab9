"""Loading, swapping and unloading while the server runs.

Covers: app/repository/assembly.py, app/repository/loader.py.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from app.repository.places import ModelPlaces
from app.repository.records import LoadedModel, ModelRecord, ModelRecords
from app.repository.repository import ModelRepository
from app.repository.served_models import ServedModels
from app.repository.source import ScannedModel, VersionSource
from popef_io import BlobType, Reader
from tests.app.served import ServedGateway, add
from tests.engine import models

ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]
CENTRED = [0.0, 0.0, 0.0, 0.0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of `served`: every test brings a model of its own."""
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def served(live: Path) -> Iterator[ServedGateway]:
    """A gateway that started with no model at all."""
    with ServedGateway(live) as gateway:
        yield gateway.wait_ready()


def manage(gateway: ServedGateway, name: str, verb: str) -> Any:
    return gateway.client.post(f"/v1/models/{name}/{verb}")


def test_an_empty_repository_is_ready_and_takes_models(
    live: Path, served: ServedGateway
) -> None:
    ask = {"inputs": {"input": ROW}}
    assert served.client.post("/v1/models/late/infer", json=ask).status_code == 404
    models.affine(live / "late.popef")
    answer = served.client.post("/v1/models/late/infer", json=ask)
    assert answer.status_code == 503
    hint = "the model is not loaded; POST /v1/models/late/load loads it"
    assert hint in answer.text
    for path in ("/v1/models/late", "/v1/models/late/stats", "/v2/models/late"):
        answer = served.client.get(path)
        assert answer.status_code == 404
        assert hint in answer.json()["error"]
    answer = manage(served, "late", "load")
    assert answer.json() == {"name": "late", "state": "READY", "version": "1"}
    assert served.infer("late", input=ROW)["output"] == AFFINE


def test_unload_and_load(live: Path, served: ServedGateway) -> None:
    add(live, "m2")
    manage(served, "m2", "load")
    (device,) = served.client.get("/v1/devices").json()["devices"]
    loaded = device["models"]
    answer = manage(served, "m2", "unload")
    assert answer.json() == {"name": "m2", "state": "UNAVAILABLE", "version": None}
    response = served.client.post(
        "/v1/models/m2/infer", json={"inputs": {"input": ROW}}
    )
    assert response.status_code == 503
    assert "unloaded" in response.json()["error"]
    assert served.client.get("/v1/health/ready").json()["failed"].get("m2") is None
    assert manage(served, "m2", "unload").status_code == 200
    (device,) = served.client.get("/v1/devices").json()["devices"]
    assert device["models"] == loaded - 1
    assert manage(served, "m2", "load").status_code == 200
    assert served.infer("m2", input=ROW)["output"] == AFFINE


def test_a_new_version_takes_over(live: Path, served: ServedGateway) -> None:
    add(live, "m3")
    manage(served, "m3", "load")
    add(live, "m3", models.mean_over_rows, version=2)
    assert served.infer("m3", input=ROW)["output"] == AFFINE
    assert manage(served, "m3", "load").json()["version"] == "2"
    assert served.infer("m3", input=ROW)["output"] == CENTRED
    assert served.infer("m3/versions/1", input=ROW)["output"] == AFFINE
    shutil.rmtree(live / "m3" / "1")
    manage(served, "m3", "load")
    gone = served.client.post("/v1/models/m3/versions/1/infer", json={})
    assert gone.status_code == 404
    assert served.infer("m3", input=ROW)["output"] == CENTRED


def test_a_replaced_file_is_loaded_again(live: Path, served: ServedGateway) -> None:
    add(live, "m4")
    manage(served, "m4", "load")
    manage(served, "m4", "load")  # nothing has changed
    add(live, "m4", models.mean_over_rows)
    manage(served, "m4", "load")
    assert served.infer("m4", input=ROW)["output"] == CENTRED


def test_changed_options_are_loaded_again(live: Path, served: ServedGateway) -> None:
    add(live, "m5")
    manage(served, "m5", "load")
    (live / "m5" / "config.toml").write_text("max_batch_size = 7")
    manage(served, "m5", "load")
    assert served.client.get("/v1/models/m5").json()["max_batch_size"] == 7


def test_a_failed_load_leaves_what_was_served(
    live: Path, served: ServedGateway
) -> None:
    add(live, "m6")
    manage(served, "m6", "load")
    add(live, "m6", lambda path: (path.write_bytes(b"broken"), path)[1])
    answer = manage(served, "m6", "load")
    assert answer.status_code == 400
    assert answer.json()["code"] == "load_failed"
    assert answer.json()["error"].startswith(
        "load failed for model 'm6': version 1: m6"
    )
    assert served.infer("m6", input=ROW)["output"] == AFFINE
    listed = served.client.get("/v1/models/m6").json()
    assert listed["state"] == "READY"
    assert "not a PopGate container" in listed["reason"]
    (live / "m6" / "config.toml").write_text("speed = 11")
    assert "unknown key 'speed'" in manage(served, "m6", "load").json()["error"]
    assert served.infer("m6", input=ROW)["output"] == AFFINE


def bend(path: Path) -> str:
    """Damage the executable in a file; return its place, as errors say it."""
    with Reader() as reader:
        reader.parse_file(path)
        (blob,) = (b for b in reader.blobs if b.type is BlobType.POPLAR_EXECUTABLE)
    content = bytearray(path.read_bytes())
    content[blob.offset + blob.header.payload_offset] ^= 1
    path.write_bytes(content)
    return f"m.popef, blob {blob.index} POPLAR_EXECUTABLE 'model', offset {blob.offset}"


def test_damage_that_shows_where_the_content_is_used(
    live: Path, served: ServedGateway
) -> None:
    """Payloads are not read when a file is opened; validation reads them."""
    add(live, "bent")
    said = bend(live / "bent" / "1" / "m.popef")
    error = manage(served, "bent", "load").json()["error"]
    assert said in error
    assert "the checksum of the payload" in error
    assert "bug" not in error
    served.wait_line("failed to load 'bent'")
    assert "Traceback" not in served.output


def test_what_fails_its_warm_up_does_not_take_over(
    live: Path, served: ServedGateway
) -> None:
    add(live, "warm")
    (live / "warm" / "config.toml").write_text("[warmup]\nbatch_sizes = [1, 2]")
    assert manage(served, "warm", "load").status_code == 200
    # It loads, and fails whatever it is asked; also without a [warmup] section,
    # because what it replaces has answered the same.
    for options in ("[warmup]\nbatch_sizes = [1, 2]", ""):
        (live / "warm" / "config.toml").write_text(options)
        add(live, "warm", models.never)
        answer = manage(served, "warm", "load")
        assert answer.status_code == 400
        assert "version 1: warm-up with ones, batch size 1 failed" in answer.text
        assert served.infer("warm", input=ROW)["output"] == AFFINE
        index = served.client.post("/v2/repository/index").json()
        (entry,) = [e for e in index if e["name"] == "warm"]
        assert entry["state"] == "READY"
        assert "warm-up with ones" in entry["reason"]
    # A new model that nobody has shown to answer ones is given the benefit of doubt.
    add(live, "doubtful", models.never)
    assert manage(served, "doubtful", "load").status_code == 200
    served.wait_line("model doubtful/1: warm-up with ones")


def test_an_example_is_run_before_it_is_shown(
    live: Path, served: ServedGateway
) -> None:
    """Where it fails, or does not fit, what was run instead is shown."""
    for name, make, example, shown in (
        ("good", models.affine, f"input = {ROW}", {"input": ROW}),
        ("far", models.gather, "index = [99]", {"index": [1]}),
        ("odd", models.gather, "index = [[1.5]]", {"index": [1]}),
        ("other", models.gather, "indices = [1]", {"index": [1]}),
    ):
        add(live, name, make, config=f"[example]\n{example}\n")
        assert manage(served, name, "load").status_code == 200
        found = served.client.get(f"/v1/models/{name}").json()["example"]
        assert found == {"inputs": shown}
    for name, why in (
        ("far", "warm-up with the example failed: "),
        ("odd", "example: "),
        ("other", "example: the model has no input indices"),
    ):
        served.wait_line(
            f"model {name}/1: the documentation does not show its example: {why}"
        )
    assert "model good/1" not in served.output


def test_a_model_that_is_no_longer_there(live: Path, served: ServedGateway) -> None:
    add(live, "m7")
    manage(served, "m7", "load")
    shutil.rmtree(live / "m7")
    answer = manage(served, "m7", "load")
    assert answer.status_code == 404
    assert "failed to poll from model repository" in answer.json()["error"]
    assert served.infer("m7", input=ROW)["output"] == AFFINE
    assert manage(served, "m7", "unload").status_code == 200


def test_swapping_under_load_fails_nobody(live: Path, served: ServedGateway) -> None:
    add(live, "m8")
    manage(served, "m8", "load")
    stop = threading.Event()
    wrong: list[str] = []
    counts = [0, 0]

    def ask() -> None:
        while not stop.is_set():
            response = served.client.post(
                "/v1/models/m8/infer", json={"inputs": {"input": ROW}}
            )
            if response.status_code != 200:
                wrong.append(response.text)
                return
            data = response.json()["outputs"][0]["data"]
            counts[data == CENTRED] += 1

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    for make in (models.mean_over_rows, models.affine) * 3:
        add(live, "m8", make)
        assert manage(served, "m8", "load").status_code == 200
    stop.set()
    for asker in askers:
        asker.join()
    assert wrong == []
    assert min(counts) > 0


def test_unloading_answers_what_is_in_flight(live: Path, served: ServedGateway) -> None:
    models.slow(live / "slow.popef")
    manage(served, "slow", "load")
    answers: list[int] = []

    def ask() -> None:
        body = {"inputs": {"count": 8000}}
        response = served.client.post("/v1/models/slow/infer", json=body)
        answers.append(response.status_code)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    while served.client.get("/v1/devices").json()["devices"][0]["in_flight"] < 3:
        assert not answers
    assert manage(served, "slow", "unload").status_code == 200
    for asker in askers:
        asker.join()
    assert answers == [200, 200, 200]


def test_models_are_loaded_at_start_and_failures_do_not_stop_others(root: Path) -> None:
    add(root, "good")
    add(root, "half")
    (root / "half" / "2").mkdir()
    (root / "bad.popef").write_bytes(b"")
    (root / "worse").mkdir()
    (root / "worse" / "config.toml").write_text("instances = 'two'")
    with ServedGateway(root) as gateway:
        failed = gateway.wait_ready().client.get("/v1/health/ready").json()["failed"]
        assert sorted(failed) == ["bad", "half", "worse"]
        assert "instances must be a whole number" in failed["worse"]
        assert "version 2: version 2 contains neither" in failed["half"]
        assert gateway.infer("half", input=ROW)["output"] == AFFINE
        assert gateway.infer("good", input=ROW)["output"] == AFFINE
        assert "models   2 ready, 2 not" in gateway.wait_line("models   ")


def test_nothing_loads_means_not_ready(root: Path) -> None:
    (root / "bad.popef").write_bytes(b"")
    with ServedGateway(root) as gateway:
        gateway.wait_line("  manage  ")
        response = gateway.client.get("/v1/health/ready")
        assert response.status_code == 503
        assert response.json()["reasons"] == ["no model could be loaded"]
        assert gateway.client.get("/v1/health/live").status_code == 200


def test_strict_readiness(root: Path) -> None:
    add(root, "good")
    (root / "bad.popef").write_bytes(b"")
    with ServedGateway(root, "--strict-readiness") as gateway:
        gateway.wait_line("  manage  ")
        response = gateway.client.get("/v1/health/ready")
        assert response.status_code == 503
        assert gateway.infer("good", input=ROW)["output"] == AFFINE


def test_a_key_protects_management(root: Path) -> None:
    add(root, "m")
    with ServedGateway(root, POPGATE_API_KEY="secret") as gateway:
        gateway.wait_ready()
        for path in ("/v1/models/m/unload", "/v2/repository/models/m/load"):
            response = gateway.client.post(path)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert "secret" not in response.text
            right = {"authorization": "Bearer secret"}
            assert gateway.client.post(path, headers=right).status_code == 200
        assert gateway.infer("m", input=ROW)["output"] == AFFINE
        assert gateway.stop() == 0
        assert "secret" not in gateway.output


def test_without_a_key_strangers_may_not_manage(served: ServedGateway) -> None:
    for headers in (
        {"x-forwarded-for": "10.0.0.1"},
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
    ):
        response = served.client.post("/v1/models/m/load", headers=headers)
        assert response.status_code == 403
        assert response.json()["code"] == "management_is_closed"
        assert "--api-key" in response.json()["error"]


def test_a_device_that_hangs_is_killed_and_comes_back(root: Path) -> None:
    models.affine(root / "affine.popef")
    with ServedGateway(root, "--device-timeout", "3") as gateway:
        gateway.wait_ready()
        (device,) = gateway.client.get("/v1/devices").json()["devices"]
        os.kill(device["pid"], signal.SIGSTOP)
        body = {"inputs": {"input": ROW}}
        answer = gateway.client.post("/v1/models/affine/infer", json=body)
        assert answer.status_code == 503
        assert answer.json()["code"] == "device_lost"
        assert "has not answered a ping for 3 s" in answer.json()["error"]
        gateway.wait_ready()
        assert gateway.infer("affine", input=ROW)["output"] == AFFINE
        (again,) = gateway.client.get("/v1/devices").json()["devices"]
        assert again["restarts"] >= 1
        assert again["pid"] != device["pid"]
        assert again["lost_by"] == "it has not answered a ping for 3 s"


def test_a_device_that_hangs_while_nobody_uses_it_is_noticed(root: Path) -> None:
    with ServedGateway(root, "--device-timeout", "3") as gateway:
        gateway.wait_ready()
        (device,) = gateway.client.get("/v1/devices").json()["devices"]
        assert (device["lost_by"], device["back_off"]) == (None, 0)
        os.kill(device["pid"], signal.SIGSTOP)
        gateway.wait_line("cpu:0 was lost: it has not answered a ping for 3 s")
        gateway.wait_line("device cpu:0 is back")
        (again,) = gateway.client.get("/v1/devices").json()["devices"]
        assert again["lost_by"] == "it has not answered a ping for 3 s"
        assert again["pid"] != device["pid"]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_model_that_is_loaded_while_its_device_is_lost_is_loaded_in_the_end(
    root: Path, number: int
) -> None:
    add(root, "first")
    with ServedGateway(root, "--device-timeout", "3") as gateway:
        gateway.wait_ready()
        (device,) = gateway.client.get("/v1/devices").json()["devices"]
        add(root, "second")
        os.kill(device["pid"], number)
        answer = manage(gateway, "second", "load")
        assert answer.status_code == 200, answer.text
        gateway.wait_line("device cpu:0 was lost")
        gateway.wait_ready()
        for name in ("first", "second"):
            assert gateway.infer(name, input=ROW)["output"] == AFFINE


class Serving:
    """In place of the loader and the served models: drains wait for `go_on`."""

    def __init__(self) -> None:
        self.records: list[ModelRecord] = []
        self.drains, self.go_on = asyncio.Event(), asyncio.Event()

    async def load(
        self,
        record: ModelRecord,
        versions: Sequence[VersionSource],
        *,
        evict: bool = True,
    ) -> list[LoadedModel]:
        return []

    def close(self) -> None: ...

    def publish(self, record: ModelRecord) -> None:
        self.records.append(record)

    async def drain(self, to_drain: Sequence[LoadedModel]) -> None:
        self.drains.set()
        await self.go_on.wait()


def test_a_load_that_waits_while_a_poll_forgets_the_model(tmp_path: Path) -> None:
    """It is published with a record that the server knows."""

    async def load_meanwhile() -> tuple[ModelRecord, ModelRecord | None]:
        serving, records = Serving(), ModelRecords(ModelPlaces(tmp_path), "")
        repository = ModelRepository(records, serving, cast("ServedModels", serving))
        records.record("m")

        async def poll() -> None:
            await repository.unload("m")
            repository.forget("m")

        scanned = ScannedModel("m", (VersionSource(1),), stamp=("new",))
        calls = (poll(), repository.unload("m"), repository.load(scanned))
        tasks = [asyncio.create_task(call) for call in calls]
        await serving.drains.wait()  # the poll has the lock
        serving.go_on.set()
        await asyncio.gather(*tasks)
        return serving.records[-1], records.get("m")

    published, known = asyncio.run(load_meanwhile())
    assert published.stamp == ("new",)
    assert published is known
