"""The modes of model control, over HTTP: who is loaded when, and by whom.

Covers: app/repository/control/control_mode.py, app/repository/control/folder_loads.py.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from app.background import DaemonPool
from app.repository.control.control_mode import ControlMode
from app.repository.control.folder_loads import FolderLoads
from app.repository.control.model_control import ModelControl
from app.repository.control.remote_files import RemoteFiles, RemoteWatch
from app.repository.control.uploads import Uploads
from app.repository.places import ModelPlaces
from app.repository.records import ModelRecords
from app.repository.repository import ModelRepository
from tests.app.served import ServedGateway, add, run_popgate
from tests.engine import models
from tests.support import WAIT, until

ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]
CENTRED = [0.0, 0.0, 0.0, 0.0]


def index(gateway: ServedGateway, *, ready: bool = False) -> dict[str, str]:
    answer = gateway.client.post("/v2/repository/index", json={"ready": ready})
    return {f"{e['name']}/{e.get('version')}": e["state"] for e in answer.json()}


def post(gateway: ServedGateway, name: str) -> Any:
    return gateway.client.post(
        f"/v2/models/{name}/infer",
        json={
            "inputs": [
                {"name": "input", "shape": [1, 4], "datatype": "FP32", "data": ROW}
            ]
        },
    )


@pytest.fixture(scope="module")
def polled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("polled")
    add(root, "first")
    options = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1")
    with ServedGateway(root, *options) as gateway:
        gateway.root = root  # type: ignore[attr-defined]
        yield gateway.wait_ready()


def root_of(gateway: ServedGateway) -> Path:
    root: Path = gateway.root  # type: ignore[attr-defined]
    return root


def test_polling_follows_the_folder(polled: ServedGateway) -> None:
    root = root_of(polled)
    assert index(polled) == {"first/1": "READY"}
    add(root, "second")
    until(lambda: "second/1" in index(polled, ready=True), polled)
    until(lambda: "loaded model 'second', version 1" in polled.output)
    assert polled.infer("second", input=ROW)["output"] == AFFINE
    add(root, "second", models.mean_over_rows, version=3)
    until(lambda: "second/3" in index(polled, ready=True))
    assert polled.infer("second", input=ROW)["output"] == CENTRED
    assert polled.infer("second/versions/1", input=ROW)["output"] == AFFINE
    metadata = polled.client.get("/v2/models/second").json()
    assert metadata["versions"] == ["1", "3"]
    shutil.rmtree(root / "second" / "3")
    until(lambda: "second/3" not in index(polled))
    assert polled.infer("second", input=ROW)["output"] == AFFINE
    (root / "second" / "config.toml").write_text("max_batch_size = 5")
    details = "/v1/models/second"
    until(lambda: polled.client.get(details).json()["max_batch_size"] == 5)
    shutil.rmtree(root / "second")
    until(lambda: index(polled) == {"first/1": "READY"})
    assert post(polled, "second").status_code == 404


@contextlib.contextmanager
def busy_control(root: Path) -> Iterator[tuple[ModelControl, ModelRecords]]:
    """A control that loads nothing, because all of its threads load other models."""
    places = ModelPlaces(root)
    records = ModelRecords(places, ControlMode.MANAGED.not_loaded_message)
    repository = cast("ModelRepository", None)
    loading, scanning = DaemonPool(1, "load"), DaemonPool(1, "scan")
    remote = RemoteFiles(records, None, loading, loading)
    loads = FolderLoads(records, places, repository, remote, loading, lazily=False)
    control = ModelControl(
        records,
        places,
        repository,
        loads,
        RemoteWatch(remote, loads.follow_remote, polls=False, seconds=15.0),
        loading,
        scanning,
        ControlMode.MANAGED,
        Uploads(root / ".uploads"),
    )
    loaded = threading.Event()
    job = loading.submit(loaded.wait)
    try:
        yield control, records
        assert not job.done()
    finally:
        loaded.set()
        loading.close()
        scanning.close()


def test_listing_the_folder_does_not_wait_for_models_that_load(tmp_path: Path) -> None:
    with busy_control(tmp_path) as (control, records):
        (tmp_path / "new.popef").touch()
        asyncio.run(asyncio.wait_for(control.discover(), WAIT))
        assert [record.name for record in records.all()] == ["new"]


def test_what_loads_when_the_server_ends_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def end_meanwhile(control: ModelControl, records: ModelRecords) -> None:
        loading = asyncio.create_task(control.load_member("new"))
        while records.get("new") is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        control.begin_end()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading

    (tmp_path / "new.popef").touch()
    with busy_control(tmp_path) as (control, records), caplog.at_level("INFO"):
        asyncio.run(asyncio.wait_for(end_meanwhile(control, records), WAIT))
    assert caplog.messages == ["'new' is not loaded: the server ends"]


def test_polling_keeps_what_served_when_the_new_is_broken(
    polled: ServedGateway,
) -> None:
    root = root_of(polled)
    add(root, "kept")
    until(lambda: "kept/1" in index(polled, ready=True))
    (root / ".bad").write_bytes(b"not a container")
    (root / ".bad").rename(root / "kept" / "1" / "m.popef")
    details = "/v1/models/kept"
    until(lambda: bool(polled.client.get(details).json()["reason"]))
    assert polled.infer("kept", input=ROW)["output"] == AFFINE
    polled.wait_line("failed to load 'kept'")
    add(root, "kept", models.mean_over_rows)
    until(lambda: not polled.client.get(details).json()["reason"])
    assert polled.infer("kept", input=ROW)["output"] == CENTRED
    failures = [line for line in polled.lines if "failed to load 'kept'" in line]
    assert len(failures) == 1


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_polling_takes_no_requests(polled: ServedGateway, verb: str) -> None:
    for path in (f"/v2/repository/models/first/{verb}", f"/v1/models/first/{verb}"):
        answer = polled.client.post(path)
        assert answer.status_code == 503
        text = "explicit model load / unload is not allowed if polling is enabled"
        assert text in answer.json()["error"]
        assert answer.json()["error"].startswith(f"failed to {verb} 'first'")
    assert polled.infer("first", input=ROW)["output"] == AFFINE


def test_statistics_are_of_what_is_served(polled: ServedGateway) -> None:
    root, ask = root_of(polled), polled.client.get

    def listed(path: str) -> list[str]:
        found = ask(f"/v2/models/{path}").json()["model_stats"]
        return [f"{s['name']}/{s['version']}" for s in found]

    add(root, "counted")
    add(root, "counted", version=2)
    until(lambda: "counted/2" in index(polled, ready=True))
    assert {"counted/1", "counted/2"} <= set(listed("stats"))
    shutil.rmtree(root / "counted" / "1")
    until(lambda: "counted/1" not in index(polled))
    assert listed("counted/stats") == ["counted/2"]
    assert "counted/1" not in listed("stats")
    gone = ask("/v2/models/counted/versions/1/stats")
    text = "requested model version is not available for model 'counted'"
    assert (gone.status_code, gone.json()["error"]) == (404, text)
    assert 'model="counted",version="1"' in ask("/metrics").text
    shutil.rmtree(root / "counted")
    until(lambda: "counted/2" not in index(polled))
    assert ask("/v2/models/counted/stats").status_code == 404


def test_explicit_loads_what_is_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        add(tmp_path, name)
    options = ("--model-control-mode", "explicit", "--load-model", "a")
    with ServedGateway(tmp_path, *options, "--load-model", "none") as gateway:
        gateway.wait_ready()
        assert index(gateway) == {
            "a/1": "READY",
            "b/None": "UNAVAILABLE",
            "c/None": "UNAVAILABLE",
            "none/None": "UNAVAILABLE",
        }
        failed = gateway.client.get("/v1/health/ready").json()["failed"]
        assert "failed to poll from model repository" in failed["none"]
        answer = post(gateway, "b")
        assert answer.status_code == 503
        assert (
            "the model is not loaded; POST /v1/models/b/load loads it"
            in answer.json()["error"]
        )
        load = "/v2/repository/models/{}/load"
        assert gateway.client.post(load.format("b")).status_code == 200
        assert post(gateway, "b").status_code == 200
        answer = gateway.client.post(load.format("missing"))
        assert answer.status_code == 404
        assert answer.json()["error"].startswith(
            "failed to load 'missing', failed to poll from model repository"
        )
        add(tmp_path, "later")
        assert index(gateway)["later/None"] == "UNAVAILABLE"


def test_the_star_loads_all(tmp_path: Path) -> None:
    add(tmp_path, "a")
    explicit = "--model-control-mode=explicit"
    with ServedGateway(tmp_path, explicit, POPGATE_LOAD_MODEL="*") as gateway:
        gateway.wait_ready()
        assert index(gateway) == {"a/1": "READY"}


def test_none_loads_all_and_takes_no_requests(tmp_path: Path) -> None:
    add(tmp_path, "a")
    with ServedGateway(tmp_path, "--model-control-mode", "none") as gateway:
        gateway.wait_ready()
        assert index(gateway) == {"a/1": "READY"}
        answer = gateway.client.post("/v2/repository/models/a/unload")
        assert answer.status_code == 503
        assert "model load / unload is not allowed" in answer.json()["error"]
        add(tmp_path, "later")
        answer = post(gateway, "later")
        assert answer.status_code == 503
        assert "control-mode none only a restart loads it" in answer.json()["error"]


def test_a_newcomer_waits_for_the_next_look_at_the_folder(tmp_path: Path) -> None:
    options = ("--model-control-mode", "poll", "--repository-poll-secs", "3600")
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.wait_ready()
        add(tmp_path, "later")
        answer = post(gateway, "later")
        assert answer.status_code == 503
        assert "the next scan of the repository loads it" in answer.json()["error"]


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    ended = run_popgate("serve", "-m", tmp_path, "--load-model", "a")
    assert ended.returncode == 2
    assert "requires --model-control-mode explicit" in ended.stderr
    ended = run_popgate("serve", "-m", tmp_path, "--model-control-mode", "some")
    assert ended.returncode == 2
    assert "--model-control-mode" in ended.stderr


def test_callers_at_the_same_time_learn_of_their_own_loads(tmp_path: Path) -> None:
    content = base64.b64encode(models.affine(tmp_path / "m.popef").read_bytes())
    root = tmp_path / "models"
    root.mkdir()
    cache = str(tmp_path / "cache")

    def load(number: int) -> int:
        good = {"max_queue_size": 1 + number}  # different, so that each is loaded
        config = {"instances": 0} if number % 2 else good
        parameters = {"config": json.dumps(config), "file:1/m.popef": content.decode()}
        answer = gateway.client.post(
            "/v2/repository/models/m/load", json={"parameters": parameters}
        )
        return answer.status_code

    with ServedGateway(root, "--trust-loopback", "--cache-dir", cache) as gateway:
        gateway.wait_ready()
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(load, range(32))) == [200, 400] * 16
