"""Whole models from real servers: what is taken, and what is served meanwhile.

Covers: app/repository/control/remote_files.py.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.repository import model_sources
from app.repository.model_sources import (
    FetchOptions,
    FetchStopped,
    RemoteCaches,
    RemoteError,
)
from app.repository.places import ModelPlaces
from plugins.remote.tests.web import Web, serving
from popgate_remote import cached_models
from popgate_remote.cached_models import CachedModels
from popgate_remote.model_source import RemoteSource
from popgate_remote.urls import ModelUrl
from tests.support import WAIT, until

BODY = bytes(range(253)) * 8000
OTHER = BODY[::-1]


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NETRC", "/nowhere")
    with serving() as found:
        found.put("/m.onnx", BODY)
        yield found


class InMemory(ModelUrl):
    """A folder of files in memory, for what asks for a URL."""

    def open(self) -> Any:
        from popgate_remote.buckets import BucketSource

        fsspec = pytest.importorskip("fsspec", reason="needs the extra s3")
        return BucketSource(fsspec.filesystem("memory"), self.path)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The files in memory that `InMemory` downloads: none yet."""
    fsspec = pytest.importorskip("fsspec", reason="needs the extra s3, gcs or azure")
    found = fsspec.filesystem("memory")
    found.store.clear()
    monkeypatch.setattr(RemoteSource, "schemes", ("memory",))
    yield found
    found.store.clear()


def url_of(web: Web) -> ModelUrl:
    return ModelUrl.of(f"{web.url}/m.onnx")


def served(remote: model_sources.RemoteModels, url: ModelUrl) -> bytes:
    folder = remote.folder_of(url)
    assert folder is not None
    return (folder / "m.onnx").read_bytes()


def test_a_model_is_taken_once_and_again_when_it_changes(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = CachedModels(tmp_path / "cache")
    caplog.set_level(logging.INFO)
    url = url_of(web)
    assert remote.fetch("model m", url)
    assert served(remote, url) == BODY
    assert f"model m: downloading 1 file, 1.93 MiB, from {url}" in caplog.text
    before = web.sent
    assert not remote.fetch("model m", url)
    web.put("/m.onnx", OTHER)
    assert remote.fetch("model m", url)
    assert served(remote, url) == OTHER
    web.put("/m.onnx", BODY)
    caplog.clear()
    assert remote.fetch("model m", url)  # it is still there
    assert "taking" not in caplog.text
    assert served(remote, url) == BODY
    assert before


def test_what_the_cache_has_is_served_without_a_network(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = url_of(web)
    CachedModels(tmp_path).fetch("model m", url)
    web.stop()
    remote = RemoteCaches(tmp_path)
    for _ in range(2):
        assert not remote.of(url).fetch("model m", url)
    assert caplog.text.count("keeps serving the cached model") == 1
    assert served(remote.of(url), url) == BODY
    without = ModelUrl.of(f"{web.url}/other.onnx")
    with pytest.raises(RemoteError, match="refused"):
        remote.of(without).fetch("model m", without)
    assert remote.of(without).folder_of(without) is None
    assert "refused" in remote.of(without).problem_of(without)
    source = ModelPlaces.of(None, [f"m={without.text}"], remote).scan("m")
    assert source is not None
    assert source.problem == remote.of(without).problem_of(without)


def test_one_that_changes_while_it_comes_is_taken_anew(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = CachedModels(tmp_path / "cache")
    url = url_of(web)
    gate = web.answers["/m.onnx"].gate = threading.Event()
    taking = threading.Thread(target=remote.fetch, args=("model m", url))
    # What is listed is what is there before; half of it comes before it changes.
    listing = web.answers["/m.onnx"]
    taking.start()
    until(lambda: len(web.asked) >= 2)
    web.put("/m.onnx", OTHER)
    listing.cuts = [len(BODY) * 3 // 4]
    gate.set()
    taking.join(WAIT)
    assert served(remote, url) == OTHER
    assert "changed meanwhile; the download starts again" in caplog.text


def test_a_checksum_that_is_given_has_to_be_right(web: Web, tmp_path: Path) -> None:
    remote = CachedModels(tmp_path / "cache")
    right, wrong = (hashlib.sha256(b).hexdigest() for b in (BODY, OTHER))
    good = ModelUrl.of(f"{web.url}/m.onnx#sha256={right}")
    assert remote.fetch("model m", good)
    assert served(remote, good) == BODY
    bad = ModelUrl.of(f"{web.url}/m.onnx#sha256={wrong}")
    with pytest.raises(RemoteError, match=f"expected sha256 {wrong}, got {right}"):
        remote.fetch("model m", bad)
    assert remote.folder_of(bad) is None


def test_a_damaged_file_of_a_known_digest_is_taken_again(
    web: Web, tmp_path: Path
) -> None:
    """The blob is the damaged file, too, because both are one file on the disk."""
    url = ModelUrl.of(f"{web.url}/m.onnx#sha256={hashlib.sha256(BODY).hexdigest()}")
    CachedModels(tmp_path).fetch("model m", url)
    (blob,) = (tmp_path / "blobs").iterdir()
    blob.chmod(0o644)
    os.truncate(blob, 1000)
    remote = CachedModels(tmp_path)
    assert remote.folder_of(url) is None
    assert remote.fetch("model m", url)
    assert served(remote, url) == BODY


def test_too_much_is_refused_before_it_comes(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(web)
    remote = CachedModels(tmp_path, FetchOptions(limit=1000))
    with pytest.raises(RemoteError, match=r"more than --model-download-limit .1000 B."):
        remote.fetch("model m", url)
    monkeypatch.setattr(cached_models, "SPARE", 1 << 60)
    remote = CachedModels(tmp_path)
    with pytest.raises(RemoteError, match=r"it has 1.93 MiB, but .*parts has .* free"):
        remote.fetch("model m", url)


def test_the_end_of_the_server_ends_a_download(web: Web, tmp_path: Path) -> None:
    url, remote = url_of(web), CachedModels(tmp_path)
    gate = threading.Event()
    ended: list[BaseException] = []

    def take() -> None:
        try:
            remote.fetch("model m", url)
        except FetchStopped as e:
            ended.append(e)

    web.answers["/m.onnx"].gate = gate
    taking = threading.Thread(target=take)
    taking.start()
    until(lambda: len(web.asked) >= 2)
    remote.stop()
    gate.set()
    taking.join(WAIT)
    assert ended
    assert remote.folder_of(url) is None


KILLED = """
import sys
from pathlib import Path
from popgate_remote.model_source import RemoteSource
from popgate_remote.cached_models import CachedModels
from popgate_remote.urls import ModelUrl
CachedModels(Path(sys.argv[1])).fetch("model m", ModelUrl.of(sys.argv[2]))
"""


def test_killed_while_it_comes_it_goes_on_where_it_stopped(
    web: Web, tmp_path: Path
) -> None:
    url, gate = url_of(web), threading.Event()
    web.answers["/m.onnx"].gate = gate
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), url.text])
    parts = tmp_path / "parts"
    until(
        lambda: (
            parts.is_dir() and any(p.stat().st_size > 500_000 for p in parts.iterdir())
        )
    )
    process.send_signal(signal.SIGKILL)
    assert process.wait(WAIT) == -signal.SIGKILL
    gate.set()
    remote = CachedModels(tmp_path)
    assert remote.folder_of(url) is None  # half a model is none
    (part,) = parts.iterdir()
    came = part.stat().st_size
    web.asked.clear()
    assert remote.fetch("model m", url)
    assert web.ranges() == [f"bytes={came}-"]
    assert served(remote, url) == BODY
    assert list(parts.iterdir()) == []


def test_models_of_s3(s3: Any, tmp_path: Path) -> None:
    def put(key: str, body: bytes) -> None:
        s3.put_object(Bucket="models", Key=f"digits/{key}", Body=body)

    put("1/m.onnx", BODY)
    put("1/model.py", b"raise SystemExit")
    put("config.toml", b"max_batch_size = 16\n")
    url = ModelUrl.of("s3://models/digits")
    remote = RemoteCaches(tmp_path)
    places = ModelPlaces.of(None, [f"digits={url.text}"], remote)
    assert remote.of(url).fetch("model digits", url)
    source = places.scan("digits")
    assert source is not None
    assert source.problem == ""
    assert source.config.max_batch_size == 16
    (version,) = source.versions
    assert [p.name for p in version.files] == ["m.onnx"]
    assert version.files[0].read_bytes() == BODY
    # What has not changed is not taken again.
    put("config.toml", b"max_batch_size = 32\n")
    inode = os.stat(version.files[0]).st_ino
    assert remote.of(url).fetch("model digits", url)
    source = places.scan("digits")
    assert source is not None
    assert source.config.max_batch_size == 32
    assert os.stat(source.versions[0].files[0]).st_ino == inode


def test_code_is_in_the_files_of_those_who_allow_it(
    tmp_path: Path, memory: Any
) -> None:
    """Servers that share a cache need not agree about code."""
    memory.pipe({"/b/m/1/m.onnx": BODY, "/b/m/2/model.py": b"raise SystemExit"})
    url = InMemory("memory://b/m", "memory", "/b/m")
    for_code = CachedModels(tmp_path, FetchOptions(allow_python=True))
    without = CachedModels(tmp_path)
    for remote in (for_code, without):
        assert remote.fetch("model m", url)
    folder = for_code.folder_of(url)
    assert folder is not None
    assert (folder / "2/model.py").exists()
    assert not for_code.fetch("model m", url)
    assert not without.fetch("model m", url)


@pytest.mark.parametrize("says_length", [True, False])
def test_a_server_that_states_neither_tag_nor_date(
    web: Web, tmp_path: Path, says_length: bool
) -> None:
    """The content itself tells that it has changed."""
    remote, url = CachedModels(tmp_path), url_of(web)
    for body in (BODY, OTHER):
        answer = web.put("/m.onnx", body)
        answer.etag, answer.says_length = "", says_length
        assert remote.fetch("model m", url)
        assert served(remote, url) == body
        assert not remote.fetch("model m", url)
    with pytest.raises(RemoteError, match="than --model-download-limit"):
        CachedModels(tmp_path / "b", FetchOptions(limit=1000)).preview(url)


def test_half_a_file_of_unknown_size_is_not_the_model(web: Web, tmp_path: Path) -> None:
    """The end of the connection is that of the file if no length is stated."""
    remote, url = CachedModels(tmp_path), url_of(web)
    answer = web.answers["/m.onnx"]
    answer.says_length, answer.takes_ranges = False, False
    answer.cuts = [100_000, 100_001]  # of the listing, and of the download
    with pytest.raises(RemoteError, match=r"m.onnx ended early"):
        remote.fetch("model m", url)
    assert remote.folder_of(url) is None
    assert remote.fetch("model m", url)
    assert served(remote, url) == BODY


@pytest.mark.parametrize(
    ("config", "allowed", "problem"),
    [
        (
            b'save_outputs = "/etc"\n',
            False,
            "save_outputs can only be set in the model",
        ),
        (
            b'python = "/bin/sh"\n',
            False,
            "python can only be set in the model repository",
        ),
        (b'save_outputs = "out"\n', True, ""),
        (b"max_batch_size = 4\n", False, ""),
    ],
)
def test_who_writes_there_may_not_write_here(
    tmp_path: Path, memory: Any, config: bytes, allowed: bool, problem: str
) -> None:
    """config.toml from elsewhere says how a model runs, not what it may do here."""
    memory.pipe({"/b/m/m.onnx": BODY, "/b/m/config.toml": config})
    url = InMemory("memory://b/m", "memory", "/b/m")
    remote = RemoteCaches(tmp_path, FetchOptions(allow_python=allowed))
    remote.of(url).fetch("model m", url)
    source = ModelPlaces(None, {"m": url}, remote).scan("m")
    assert source is not None
    assert problem in source.problem
    assert bool(source.problem) == bool(problem)


# -- `source` in a config.toml of the repository


def with_source(root: Path, text: str, name: str = "m") -> Path:
    """A model of the repository that says where its files are; its config.toml."""
    (root / name).mkdir(parents=True, exist_ok=True)
    path = root / name / "config.toml"
    path.write_text(text)
    return path


def test_a_config_says_where_its_files_are(web: Web, tmp_path: Path) -> None:
    root, remote = tmp_path / "models", RemoteCaches(tmp_path / "cache")
    path = with_source(
        root, f'source = "{web.url}/m.onnx"\nsave_outputs = "out"\nmax_batch_size = 8\n'
    )
    places = ModelPlaces(root, {}, remote)
    before = places.scan("m")
    assert before is not None
    assert before.url == url_of(web)
    assert before.problem == f"{web.url}/m.onnx is not downloaded yet"
    remote.of(before.url).fetch("model m", before.url)
    source = places.scan("m")
    assert source is not None
    assert source.problem == ""
    assert source.config.max_batch_size == 8
    # What it writes is beside its configuration, not in the cache.
    assert source.config.save_outputs == str(root / "m" / "out")
    (version,) = source.versions
    assert version.files[0].read_bytes() == BODY
    assert version.files[0].is_relative_to(tmp_path / "cache")
    # Whatever changes, here or there, is another model.
    path.write_text(f'source = "{web.url}/m.onnx"\n')
    changed = places.scan("m")
    assert changed is not None
    web.put("/m.onnx", OTHER)
    remote.of(before.url).fetch("model m", before.url)
    moved = places.scan("m")
    assert moved is not None
    assert len({before.stamp, source.stamp, changed.stamp, moved.stamp}) == 4


@pytest.mark.parametrize(
    ("theirs", "ours", "trusted", "problem"),
    [
        ("max_batch_size = 4", "", False, ""),
        ("max_batch_size = 9", "max_batch_size = 4", False, ""),
        ("max_batch_size = 4", 'save_outputs = "out"', False, ""),
        ('save_outputs = "/etc"', "", False, "config.toml of memory://b/m: save_outpu"),
        (
            'source = "s3://b/c"',
            "",
            False,
            "memory://b/m: source can only be set in the mod",
        ),
        ('source = "s3://b/c"', "", True, "cannot set source to another URL"),
        ("max_batch = 4", "", False, "config.toml of memory://b/m: unknown key"),
        ("max_batch_size = 4", "max_batch = 4", False, "config.toml: unknown key"),
    ],
)
def test_the_config_here_wins_over_the_one_there(
    tmp_path: Path,
    memory: Any,
    monkeypatch: pytest.MonkeyPatch,
    theirs: str,
    ours: str,
    trusted: bool,
    problem: str,
) -> None:
    memory.pipe({"/b/m/1/m.onnx": BODY, "/b/m/config.toml": theirs.encode()})
    url = InMemory("memory://b/m", "memory", "/b/m")
    monkeypatch.setattr(ModelUrl, "of", lambda text: url)
    root = tmp_path / "models"
    with_source(root, f'source = "memory://b/m"\n{ours}\n')
    remote = RemoteCaches(tmp_path / "cache", FetchOptions(allow_python=trusted))
    remote.of(url).fetch("model m", url)
    source = ModelPlaces(root, {}, remote).scan("m")
    assert source is not None
    assert problem in source.problem
    assert bool(source.problem) == bool(problem)
    if not problem:
        assert source.config.max_batch_size == 4


@pytest.mark.parametrize("beside", ["1/m.onnx", "m.popef", "config.pbtxt", "../m.onnx"])
def test_files_are_here_or_elsewhere(tmp_path: Path, beside: str) -> None:
    with_source(tmp_path, 'source = "https://h.example/m.onnx"')
    path = tmp_path / "m" / beside
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    source = ModelPlaces(tmp_path, {}, RemoteCaches(tmp_path / "cache")).scan("m")
    assert source is not None
    assert (
        "come from source = 'https://h.example/m.onnx', but the folder"
        in source.problem
    )
    assert source.problem.endswith(
        f"also contains {Path(beside).parts[-1 if '.' in beside[0] else 0]}; keep one"
    )


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://h/m.onnx", "ftp: is not supported; supported are az:, gs:"),
        ("http://h.example/m.onnx", "has no TLS"),
        ("models/digits", "is not supported"),
        ("s3:///", "names no model"),
    ],
)
def test_a_url_that_cannot_be(tmp_path: Path, url: str, problem: str) -> None:
    with_source(tmp_path, f'source = "{url}"')
    source = ModelPlaces(tmp_path, {}, RemoteCaches(tmp_path / "cache")).scan("m")
    assert source is not None
    assert source.problem.startswith("config.toml: source: ")
    if url.startswith("s3") and "s3fs" in source.problem:
        pytest.skip("needs the extra s3")
    assert problem in source.problem
