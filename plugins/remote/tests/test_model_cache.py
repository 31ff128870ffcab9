"""The cache: whole models or none, shared with other processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.repository.model_sources import FetchStopped, RemoteError
from popgate_remote.listing import Listing, RemoteFile
from popgate_remote.model_cache import MANIFEST, CacheEntry, ModelCache, Snapshot
from tests.support import WAIT, until

URL = "s3://bucket/digits?x=secret"


def commit(cache: ModelCache, *files: tuple[str, bytes]) -> Snapshot:
    found, sha256 = [], {}
    for name, content in files:
        file = RemoteFile(name, name, len(content), f"tag of {content!r}")
        digest = hashlib.sha256(content).hexdigest()
        part = cache.part(URL, file)
        part.write_bytes(content)
        cache.keep(part, digest)
        sha256[name] = digest
        found.append(file)
    entry = cache.entry(URL)
    with entry.locked(threading.Event()):
        return entry.commit(Listing(tuple(found)), sha256, "s3://bucket/digits")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def snapshots(entry: CacheEntry) -> set[str]:
    return {p.name for p in entry.folder.iterdir() if p.is_dir() and not p.is_symlink()}


def test_a_model_is_there_whole_and_under_its_digest(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    entry = cache.entry(URL)
    assert entry.current() is None
    assert not cache.folder.exists()
    made = commit(cache, ("1/m.onnx", b"one"), ("config.toml", b""))
    assert contents(made.folder) == {"1/m.onnx": b"one", "config.toml": b""}
    found = ModelCache(cache.folder).entry(URL).current()
    assert found == made
    assert entry.folder.name.startswith("s3-bucket-digits-")
    assert "secret" not in str(made.folder)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    # One content, once on the disk.
    blob = cache.blob(hashlib.sha256(b"one").hexdigest())
    assert blob.samefile(made.folder / "1/m.onnx")
    assert ModelCache(cache.folder).entry("s3://other").current() is None


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "link"])
def test_what_is_damaged_is_not_served_and_made_again(
    tmp_path: Path, damage: str
) -> None:
    cache = ModelCache(tmp_path)
    made = commit(cache, ("m.onnx", b"one"))
    file = made.folder / "m.onnx"
    if damage == "cut":
        file.unlink()
        file.write_bytes(b"o")
    elif damage == "gone":
        file.unlink()
    elif damage == "manifest":
        (made.folder / MANIFEST).write_text('{"files": [["../x", 1, "", ""]]}')
    else:
        (made.folder.parent / "current").unlink()
    cache.let_go(made.folder)
    assert cache.entry(URL).current() is None
    again = commit(cache, ("m.onnx", b"one"))
    assert contents(again.folder) == {"m.onnx": b"one"}


def test_what_is_replaced_goes_when_nobody_uses_it(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    entry = cache.entry(URL)
    first = commit(cache, ("m.onnx", b"one"))
    second = commit(cache, ("m.onnx", b"two"))
    assert entry.current() == second
    entry.drop([first.folder / "m.onnx"])
    assert snapshots(entry) == {first.digest, second.digest}
    entry.drop([])
    assert snapshots(entry) == {second.digest}
    assert contents(second.folder) == {"m.onnx": b"two"}


def test_what_served_last_is_kept_by_a_server_that_has_not_used_it(
    tmp_path: Path,
) -> None:
    """A server that has restarted holds no snapshot. Its first look for unused
    snapshots finds the link `served`, and must not follow it."""
    cache = ModelCache(tmp_path)
    entry = cache.entry(URL)
    first = commit(cache, ("m.onnx", b"one"))
    entry.confirm([first.folder / "m.onnx"])
    commit(cache, ("m.onnx", b"two"))
    cache.let_go(first.folder)
    entry.drop([])
    assert entry.served() == first


def test_files_in_use_are_known_however_the_cache_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a relative path, or through a link: a scan resolves the files it finds."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.chdir(tmp_path)
    for name in ("link/a", "b"):
        cache = ModelCache(Path(name))
        entry = cache.entry(URL)
        first = commit(cache, ("m.onnx", b"one"))
        used = [(first.folder / "m.onnx").resolve()]
        entry.confirm(used)
        commit(cache, ("m.onnx", b"two"))
        entry.drop(used)
        served = ModelCache(Path(name)).entry(URL).served()
        assert served is not None
        assert served.digest == first.digest


def test_another_process_keeps_what_it_serves(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    entry = cache.entry(URL)
    first = commit(cache, ("m.onnx", b"one"))
    code = (
        "import sys; from pathlib import Path\n"
        "from popgate_remote.model_cache import ModelCache\n"
        "cache = ModelCache(Path(sys.argv[1]))\n"
        "print(cache.entry(sys.argv[2]).current(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), URL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    with other, other.stdin:
        assert first.digest in other.stdout.readline()
        commit(cache, ("m.onnx", b"two"))
        entry.drop([])
        assert contents(first.folder) == {"m.onnx": b"one"}
        other.send_signal(signal.SIGKILL)
        other.wait(WAIT)
    entry.drop([])
    assert not first.folder.exists()


def test_one_that_comes_back_is_there_at_once(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    entry = cache.entry(URL)
    first = commit(cache, ("m.onnx", b"one"))
    commit(cache, ("m.onnx", b"two"))
    listing = Listing((RemoteFile("m.onnx", "", 3, "tag of b'one'"),))
    assert listing.digest == first.digest
    with entry.locked(threading.Event()):
        assert entry.switch(listing) == first
        assert entry.switch(Listing((RemoteFile("m.onnx", "", 9, ""),))) is None
    assert entry.current() == first


def test_what_killed_processes_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ModelCache(tmp_path)
    made = commit(cache, ("m.onnx", b"one"))
    left = made.folder.parent / ".new-abc"
    left.mkdir()
    (left / "m.onnx").write_bytes(b"half")
    old = [cache.make("parts") / "old", cache.blob("0" * 64)]
    for path in old:
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    fresh = cache.make("parts") / "fresh"
    fresh.write_bytes(b"half")
    cache.entry(URL).drop([made.folder / "m.onnx"])
    assert [p.exists() for p in (left, *old, fresh, made.folder)] == [
        *(False, False, False),
        *(True, True),
    ]


def test_what_another_process_is_making_is_left_alone(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    entry = cache.entry(URL)
    made = commit(cache, ("m.onnx", b"one"))
    being_made = made.folder.parent / ".new-abc"
    being_made.mkdir()
    with ModelCache(tmp_path).entry(URL).locked(threading.Event()):
        entry.drop([])
        assert being_made.exists()
    entry.drop([])
    assert not being_made.exists()


def test_what_nobody_looks_for_any_more_is_removed(tmp_path: Path) -> None:
    user, other = ModelCache(tmp_path), ModelCache(tmp_path)
    made = commit(user, ("m.onnx", b"one"))
    entry, lock = user.entry(URL), made.folder.parent / ".lock"
    other.sweep()
    os.utime(lock, (0, 0))
    other.sweep()  # it is served
    assert entry.current() == made
    user.let_go(made.folder)
    other.sweep()  # it was looked for
    assert entry.current() == made
    user.let_go(made.folder)
    os.utime(lock, (0, 0))
    entered = threading.Event()

    def take() -> None:
        """As one that comes while it is removed."""
        with other.entry(URL).locked(threading.Event()):
            entered.set()

    with entry.locked(threading.Event()):
        other.sweep()  # it is being taken
        assert made.folder.exists()
        taking = threading.Thread(target=take)
        taking.start()
    taking.join(WAIT)
    assert entered.is_set()
    other.sweep()
    assert not made.folder.parent.exists()
    assert entry.current() is None
    assert commit(user, ("m.onnx", b"one")).folder == made.folder


def test_a_folder_without_a_lock_keeps_no_other(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    made = commit(cache, ("m.onnx", b"one"))
    for number in range(20):
        (tmp_path / "models" / f"begun-{number}").mkdir()
    cache.let_go(made.folder)
    os.utime(made.folder.parent / ".lock", (0, 0))
    cache.sweep()
    assert not made.folder.parent.exists()


def test_one_process_at_a_time_takes_a_model(tmp_path: Path) -> None:
    cache, stop = ModelCache(tmp_path), threading.Event()
    entered = threading.Event()

    def second() -> None:
        with cache.entry(URL).locked(threading.Event()):
            entered.set()

    waiting = threading.Thread(target=second)
    with cache.entry(URL).locked(stop):
        waiting.start()
        stop.set()
        with pytest.raises(FetchStopped), cache.entry(URL).locked(stop):
            pass
        assert not entered.is_set()
    waiting.join()
    assert entered.is_set()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = ModelCache(tmp_path / "file")
    with pytest.raises(RemoteError, match=r"cannot be created \(--model-cache\): "):
        cache.make("parts")
    entry = cache.entry(URL)
    assert entry.current() is None
    with (
        pytest.raises(RemoteError, match="cannot be created"),
        entry.locked(threading.Event()),
    ):
        pass


def test_file_systems_without_hard_links_have_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    made = commit(ModelCache(tmp_path), ("m.onnx", b"one"))
    assert contents(made.folder) == {"m.onnx": b"one"}
    until(lambda: (made.folder / "m.onnx").stat().st_nlink == 1)
