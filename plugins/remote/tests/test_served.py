"""`popgate serve` with models that are elsewhere."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.repository.model_sources import FetchOptions
from plugins.remote.tests.web import Web, serving
from popgate_remote.cached_models import CachedModels
from popgate_remote.urls import ModelUrl
from tests.app.api.test_server_metrics import value
from tests.app.repository.test_repository import bend
from tests.app.served import ServedGateway
from tests.engine import models
from tests.support import WAIT, until


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as found:
        yield found


def file_of(tmp_path: Path, make: Callable[[Path], Path]) -> bytes:
    return make(tmp_path / "made.popef").read_bytes()


def infer(gateway: ServedGateway) -> float:
    answer = gateway.client.post(
        "/v1/models/m/infer", json={"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
    )
    assert answer.status_code == 200, answer.text
    value: float = answer.json()["outputs"][0]["data"][0]
    return value


def test_what_changes_elsewhere_is_swapped_in_without_a_failed_request(
    web: Web, tmp_path: Path
) -> None:
    web.put("/m.popef", file_of(tmp_path, models.affine))
    options = (
        "--model",
        f"m={web.url}/m.popef",
        "--cache-dir",
        str(tmp_path / "cache"),
    )
    poll = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1")
    with ServedGateway(None, *options, *poll, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        before = infer(gateway)
        # Nothing half or wrong ever takes the place of what is served.
        web.put("/m.popef", b"not a container")
        gateway.wait_line("failed to load 'm'")
        assert infer(gateway) == before
        web.put("/m.popef", file_of(tmp_path, models.mean_over_rows))
        until(lambda: infer(gateway) != before)
        after = infer(gateway)
        web.stop()
        gateway.wait_line("keeps serving the cached model")
        assert infer(gateway) == after
    # And without a network from the start; a load request does not look there.
    with ServedGateway(None, *options, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        assert infer(gateway) == after
        asked = len(web.asked)
        assert gateway.client.post("/v1/models/m/load").status_code == 200
        assert len(web.asked) == asked
        assert "keeps serving the cached model" in gateway.output


def test_what_could_not_be_taken_at_the_start_is_tried_again(
    web: Web, tmp_path: Path
) -> None:
    options = ("--model", f"m={web.url}/m.popef", "--repository-poll-secs", "0.1")
    cache = ("--model-cache", str(tmp_path / "cache"), "--trust-loopback")
    with ServedGateway(None, *options, *cache, NETRC="/nowhere") as gateway:
        gateway.wait_line("failed to load 'm'")
        reason = gateway.client.get("/v1/models/m").text
        assert "does not exist" in reason
        host = web.url.partition("://")[2]
        for answer in (
            gateway.client.post("/v1/models/m/infer", json={"inputs": {}}),
            gateway.client.get("/v2/models/m"),
            gateway.client.get("/v1/health/ready"),
        ):  # which a key for inference, or none, may ask for
            assert "the server's log has the reason" in answer.text
            assert host not in answer.text
            assert "does not exist" not in answer.text
        told = gateway.client.post("/v1/models/m/load")
        assert told.status_code == 400
        assert host in told.text
        web.put("/m.popef", file_of(tmp_path, models.affine))
        gateway.until("/v2/models/m/ready", 200)
        assert infer(gateway) == 3.0


def check_former_files(before: float, *options: str) -> None:
    """Start servers beside a cached file that cannot be loaded; check that the former
    file serves."""
    for _ in range(2):
        with ServedGateway(None, *options, NETRC="/nowhere") as gateway:
            gateway.wait_ready()
            assert infer(gateway) == before
            gateway.wait_line("serving its former files")
            assert gateway.client.get("/v1/models/m").json()["reason"]


def test_a_bad_file_does_not_cost_the_good_one(web: Web, tmp_path: Path) -> None:
    """Neither while the server runs, nor when it starts again and the URL still holds
    the bad file. What serves next takes its place."""
    path = "/m.popef"
    web.put(path, file_of(tmp_path, models.affine))
    options = ("--model", f"m={web.url}{path}", "--cache-dir", str(tmp_path / "cache"))
    poll = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1")
    with ServedGateway(None, *options, *poll, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        before = infer(gateway)
        web.put(path, b"not a model")
        gateway.wait_line("failed to load 'm'")
        assert infer(gateway) == before
    check_former_files(before, *options, *poll)
    with ServedGateway(None, *options, *poll, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        web.put(path, file_of(tmp_path, models.mean_over_rows))
        until(lambda: infer(gateway) != before)
        assert not gateway.client.get("/v1/models/m").json()["reason"]


def test_a_bad_file_does_not_cost_the_good_one_on_demand(
    web: Web, tmp_path: Path
) -> None:
    """The cache keeps the file that a request has loaded. A later request loads it
    again if the server cannot load the newer file."""
    path = "/m.popef"
    web.put(path, file_of(tmp_path, models.affine))
    options = ("--model", f"m={web.url}{path}", "--cache-dir", str(tmp_path / "cache"))
    poll = ("--lazy", "--model-control-mode", "poll", "--repository-poll-secs", "0.1")
    with ServedGateway(None, *options, *poll, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        before = infer(gateway)
        bend(tmp_path / "made.popef")
        web.put(path, (tmp_path / "made.popef").read_bytes())
        gateway.wait_line("failed to load 'm'")
        assert infer(gateway) == before
    check_former_files(before, *options, *poll)


def test_a_stalled_download_speaks(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and in the model's `reason`, as long as nothing comes."""
    body = file_of(tmp_path, models.affine) + bytes(1 << 18)
    answer = web.put("/m.popef", body)
    answer.gate = threading.Event()
    caplog.set_level(logging.INFO)
    limits = FetchOptions(progress_seconds=0.05)
    remote = CachedModels(tmp_path / "cache", limits)
    url = ModelUrl.of(f"{web.url}/m.popef")
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(remote.fetch("m", url)))
    thread.start()
    until(lambda: "no data for" in remote.news_of(url))
    until(lambda: "m: " in caplog.text and "no data for" in caplog.text)
    assert str(url) in remote.news_of(url)
    assert "KiB of " in remote.news_of(url)
    answer.gate.set()
    thread.join()
    assert found == [True]
    assert remote.news_of(url) == ""


def test_what_keeps_the_newest_from_coming_is_in_the_reason(
    web: Web, tmp_path: Path
) -> None:
    web.put("/m.popef", file_of(tmp_path, models.affine))
    options = ("--model", f"m={web.url}/m.popef", "--cache-dir", str(tmp_path / "c"))
    poll = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1",
            "--trust-loopback")  # fmt: skip
    with ServedGateway(None, *options, *poll, NETRC="/nowhere") as gateway:
        gateway.wait_ready()

        def reason() -> str:
            text: str = gateway.client.get("/v1/models/m").json()["reason"]
            return text

        assert reason() == ""
        answer = web.answers.pop("/m.popef")
        until(lambda: "does not exist" in reason())
        infer(gateway)
        web.answers["/m.popef"] = answer
        until(lambda: reason() == "")
        # A download that stalls is no failure: it is told of while it lasts.
        stalled = web.put("/m.popef", bytes(1 << 20))
        stalled.gate = threading.Event()
        until(lambda: " of 1 MiB" in reason())
        stalled.gate.set()


def say(root: Path, text: str) -> None:
    """Puts a config.toml there as operators do."""
    (root / "m").mkdir(exist_ok=True)
    (root / ".config").write_text(text)
    (root / ".config").rename(root / "m" / "config.toml")


def test_the_repository_says_where_a_model_is(web: Web, tmp_path: Path) -> None:
    """As it comes into the folder, changes there, changes its place, and goes."""
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "other.popef")
    web.put("/a.popef", file_of(tmp_path, models.affine))
    options = ("--model-cache", str(tmp_path / "cache"), "--model-control-mode", "poll")
    often = ("--repository-poll-secs", "0.1")
    with ServedGateway(root, *options, *often, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        say(root, f'source = "{web.url}/a.popef"\nmax_batch_size = 8\n')
        gateway.until("/v2/models/m/ready", 200)
        config = gateway.client.get("/v2/models/m/config").json()
        assert config["max_batch_size"] == 8
        assert infer(gateway) == 3.0
        # The next place is wrong at first: what serves is served on.
        say(root, f'source = "{web.url}/b.popef"\n')
        gateway.wait_line("failed to load 'm': ")
        assert "does not exist" in gateway.client.get("/v1/models/m").text
        assert infer(gateway) == 3.0
        web.put("/b.popef", file_of(tmp_path, models.mean_over_rows))
        until(lambda: infer(gateway) != 3.0)
        after = infer(gateway)
        asked = len(web.asked)
        (root / "m").rename(tmp_path / "gone")
        gateway.until("/v2/models/m/ready", 404)
        say(root, f'source = "{web.url}/b.popef"\n')
        gateway.until("/v2/models/m/ready", 200)
        assert all(path != "/a.popef" for _, path, _ in web.asked[asked:])
    web.stop()
    with ServedGateway(root, *options, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        assert infer(gateway) == after


def test_a_load_takes_what_the_cache_has_nothing_of(web: Web, tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "other.popef")
    cache = ("--model-cache", str(tmp_path / "cache"))
    with ServedGateway(root, *cache, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        say(root, f'source = "{web.url}/m.popef"\n')
        answer = gateway.client.post("/v1/models/m/load")
        assert answer.status_code == 400
        assert f"{web.url}/m.popef does not exist" in answer.text
        web.put("/m.popef", file_of(tmp_path, models.affine))
        assert gateway.client.post("/v1/models/m/load").status_code == 200
        assert infer(gateway) == 3.0
        # From now on that is the cache's, and no request can say another place.
        asked = len(web.asked)
        assert gateway.client.post("/v1/models/m/load").status_code == 200
        assert len(web.asked) == asked
        override = {"parameters": {"config": f'{{"source": "{web.url}/x.popef"}}'}}
        answer = gateway.client.post("/v2/repository/models/m/load", json=override)
        assert answer.status_code == 400
        assert "source can only be set in the model repository" in answer.text
    # What a request has loaded and has served is kept as other files are.
    web.put("/m.popef", b"not a model")
    with ServedGateway(root, *cache, NETRC="/nowhere") as gateway:
        gateway.wait_ready()
        assert infer(gateway) == 3.0
        gateway.wait_line("serving its former files")


def test_ctrl_c_ends_a_download_at_once(web: Web, tmp_path: Path) -> None:
    answer = web.put("/m.popef", bytes(1 << 20))
    answer.gate = threading.Event()  # never set: it hangs for ever
    options = ("--model", f"m={web.url}/m.popef", "--model-cache", str(tmp_path))
    with ServedGateway(None, *options, NETRC="/nowhere") as gateway:
        gateway.wait_line("downloading 1 file")
        gateway.process.send_signal(signal.SIGINT)
        assert gateway.process.wait(WAIT) == 0
    assert "ERROR" not in gateway.output
    answer.gate.set()


def test_looks_for_a_model_from_elsewhere(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/m.onnx"
        options = ["--model", f"far={url}", "--repository-poll-secs", "0.1"]
        options += ["--cache-dir", str(tmp_path)]
        with ServedGateway(None, *options) as served:
            until(
                lambda: value(served, "popgate_remote_failures_total", model="far") > 0
            )
            since = "popgate_remote_last_success_timestamp_seconds"
            assert value(served, since, model="far") == 0
