"""Real servers of all kinds of places: what comes, and what a kill leaves."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from app.repository.model_sources import RemoteCaches, RemoteError
from app.repository.places import ModelPlaces
from plugins.remote.tests.stores import SCHEMES, Store, missing, store
from popgate_remote import buckets, http_files
from popgate_remote.cached_models import CachedModels
from popgate_remote.urls import ModelUrl
from tests.app.served import ServedGateway
from tests.engine.models import Port, write_model
from tests.support import WAIT, until

CONFIG = b"max_batch_size = 16\n"
WEIGHTS = np.arange(4 * 60_000, dtype=np.float32).reshape(4, -1)
ROW = [[1.0, 0.0, 0.0, 0.0]]
MODEL = "1/m.popef"

#: `popgate`, which asks buckets for small blocks, of which several are ahead.
GATEWAY = """
from app.cli import main
from popgate_remote import buckets
buckets.BLOCK = 1 << 16
main()
"""


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of nearly a megabyte (of more the library of Google warns)."""
    path = write_model(
        tmp_path_factory.mktemp("made") / "m.popef",
        [
            helper.make_node("MatMul", ["input", "weights"], ["wide"]),
            helper.make_node("ReduceMax", ["wide"], ["output"], keepdims=1),
        ],
        [Port("input", (1, 4))],
        [Port("output", (1, 1))],
        {"weights": WEIGHTS},
    )
    return path.read_bytes()


@pytest.fixture(scope="module", params=SCHEMES)
def there(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    body: bytes,
) -> Iterator[Store]:
    """A server with a model in it."""
    if why := missing(request.param):
        pytest.skip(why)
    with store(request.param, tmp_path_factory.mktemp(request.param)) as found:
        found.fill({MODEL: body, "config.toml": CONFIG})
        yield found


def url_of(there: Store) -> ModelUrl:
    return ModelUrl.of(there.url)


def model_of(remote: CachedModels, there: Store) -> bytes:
    folder = remote.folder_of(url_of(there))
    assert folder is not None
    return (folder / MODEL).read_bytes()


def test_a_model_comes_with_its_checksums(
    there: Store, tmp_path: Path, body: bytes
) -> None:
    source = url_of(there).open()
    found = {file.name: file for file in source.files()}
    assert sorted(found) == [MODEL, "config.toml"]
    model = found[MODEL]
    assert model.size == len(body)
    assert model.tag
    sums = hashlib.new(there.sums, body).hexdigest()
    assert source.checksums(model) == ((there.sums, sums),)
    with source.open(model, 1000) as (begins, chunks):
        assert b"".join(chunks) == body[begins:]
    source.close()
    for text in there.nothing:
        nothing = ModelUrl.of(text).open()
        with pytest.raises(RemoteError, match="does not exist"):
            list(nothing.files())
        nothing.close()
    root, caches = tmp_path / "models", RemoteCaches(tmp_path / "cache")
    (root / "m").mkdir(parents=True)
    (root / "m" / "config.toml").write_text(f'source = "{there.url}"\n')
    places = ModelPlaces(root, {}, caches)
    remote = caches.of(url_of(there))
    remote.fetch("model m", url_of(there))
    served = places.scan("m")
    assert served is not None
    assert served.problem == ""
    assert served.config.max_batch_size == 16
    assert served.versions[0].files[0].read_bytes() == body
    assert not remote.fetch("model m", url_of(there))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_server_of_ours_that_ends_in_a_download_goes_on_where_it_was(
    there: Store, tmp_path: Path, body: bytes, number: signal.Signals
) -> None:
    options = ("--model", f"m={there.url}", "--model-cache", str(tmp_path))
    there.relay.hold(len(body) // 2)
    parts = tmp_path / "parts"
    command = [sys.executable, "-c", GATEWAY, "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: parts.is_dir() and any(p.stat().st_size for p in parts.iterdir()))
    until(lambda: there.relay.sent >= len(body) // 2)
    process.send_signal(number)
    told = process.communicate(timeout=WAIT)[1]
    assert process.returncode == (-number if number is signal.SIGKILL else 0)
    assert "Traceback" not in told
    there.relay.let_go()
    assert CachedModels(tmp_path).folder_of(url_of(there)) is None  # half is none
    came = sum(part.stat().st_size for part in parts.iterdir())
    assert 0 < came < len(body)
    there.relay.sent = 0
    with ServedGateway(None, *options) as gateway:
        gateway.wait_ready()
        assert gateway.infer("m", input=ROW)["output"] == [WEIGHTS[0].max()]
    assert len(body) - came <= there.relay.sent < len(body)
    assert model_of(CachedModels(tmp_path), there) == body


def test_a_store_that_is_killed_gives_a_whole_model_or_none(
    there: Store, tmp_path: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "BLOCK", 1 << 16)
    remote, url = CachedModels(tmp_path), url_of(there)
    there.relay.hold(len(body) // 2)
    ended: list[RemoteError | bool] = []

    def fetch() -> None:
        try:
            ended.append(remote.fetch("model m", url))
        except RemoteError as e:
            ended.append(e)

    taking = threading.Thread(target=fetch)
    taking.start()
    until(lambda: there.relay.sent >= len(body) // 2)
    there.kill()
    there.relay.let_go()
    assert remote.folder_of(url) is None
    there.start()
    # What it has lost: none of them promises to keep what it was given.
    there.fill({MODEL: body, "config.toml": CONFIG})
    taking.join(WAIT)
    if remote.folder_of(url) is None:
        assert isinstance(ended[0], RemoteError)
        assert remote.fetch("model m", url)
    assert model_of(remote, there) == body


def test_a_store_that_does_not_answer_is_given_up(
    there: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "QUESTION_SECONDS", 0.1)
    monkeypatch.setattr(http_files, "TIMEOUT", 0.1)
    there.relay.hold(0)
    with pytest.raises(RemoteError, match=r"timed out|no answer in time"):
        CachedModels(tmp_path).fetch("model m", url_of(there))
    there.relay.let_go()


def test_the_library_of_hugging_face_takes_the_same(
    tmp_path: Path, body: bytes
) -> None:
    """What stands in for the hub is taken for one."""
    hub = pytest.importorskip("huggingface_hub", reason="make test-buckets")
    with store("hf", tmp_path / "hub") as found:
        found.fill({MODEL: body, "config.toml": CONFIG})
        endpoint, token = (found.variables[f"HF_{n}"] for n in ("ENDPOINT", "TOKEN"))
        folder = hub.snapshot_download(
            "me/digits", cache_dir=tmp_path / "theirs", endpoint=endpoint, token=token
        )
        remote = CachedModels(tmp_path / "ours")
        remote.fetch("model m", url_of(found))
        assert model_of(remote, found) == body == (Path(folder) / MODEL).read_bytes()
