"""One file into the cache, whatever the network does meanwhile.

Covers: plugins/remote/src/popgate_remote/beside.py,
plugins/remote/src/popgate_remote/errors.py,
plugins/remote/src/popgate_remote/source.py.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.repository.model_sources import FetchStopped, RemoteError
from plugins.remote.tests.web import Web, serving
from popgate_remote.download import TRIES, Progress, download
from popgate_remote.errors import SourceAway, SourceChanged
from popgate_remote.http_files import WebSource
from popgate_remote.listing import RemoteFile

BODY = bytes(range(251)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NETRC", "/nowhere")
    with serving() as found:
        found.put("/m.onnx", BODY)
        yield found


def listed(web: Web) -> tuple[WebSource, RemoteFile]:
    source = WebSource(f"{web.url}/m.onnx")
    (file,) = source.files()
    web.asked.clear()
    return source, file


def taken(
    web: Web, part: Path, *, limit: int = 0, **changes: object
) -> tuple[str, Progress]:
    source, file = listed(web)
    progress = Progress("model m", len(BODY), threading.Event(), limit=limit)
    try:
        file = replace(file, **changes)  # type: ignore[arg-type]
        return download(source, file, part, progress, 0.001), progress
    finally:
        source.close()


def test_a_file_comes_whole(web: Web, tmp_path: Path) -> None:
    digest, progress = taken(web, tmp_path / "part")
    assert digest == SHA256
    assert (tmp_path / "part").read_bytes() == BODY
    assert progress.came == len(BODY)
    assert progress.state().startswith("980 KiB of 980 KiB (100 %), ")


def test_what_breaks_off_goes_on_where_it_stopped(web: Web, tmp_path: Path) -> None:
    source, file = listed(web)
    web.answers["/m.onnx"].cuts = [100_000, 300_000, 300_001]
    progress = Progress("model m", len(BODY), threading.Event())
    assert download(source, file, tmp_path / "part", progress, 0.001) == SHA256
    source.close()
    begins = [int(r.removeprefix("bytes=").rstrip("-")) for r in web.ranges()]
    assert begins == [100_000, 300_000, 300_001]
    assert progress.came == len(BODY)


def test_a_part_of_an_earlier_process_is_gone_on_with(web: Web, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(BODY[:500_000])
    digest, progress = taken(web, part)
    assert digest == SHA256
    assert web.ranges() == ["bytes=500000-"]
    assert progress.came == len(BODY) - 500_000


def test_a_part_that_is_whole_already_is_not_asked_for(
    web: Web, tmp_path: Path
) -> None:
    part = tmp_path / "part"
    part.write_bytes(BODY)
    assert taken(web, part)[0] == SHA256
    assert web.asked == []


def test_what_says_nothing_of_itself_comes_from_the_beginning(
    web: Web, tmp_path: Path
) -> None:
    """Neither tag nor digest: what is there may be of another file."""
    part = tmp_path / "part"
    part.write_bytes(b"x" * 1000)
    web.answers["/m.onnx"].etag = ""
    assert taken(web, part)[0] == SHA256
    assert part.read_bytes() == BODY


def test_a_server_without_ranges_begins_again(web: Web, tmp_path: Path) -> None:
    web.answers["/m.onnx"].takes_ranges = False
    part = tmp_path / "part"
    part.write_bytes(b"x" * 1000)
    assert taken(web, part)[0] == SHA256
    assert part.read_bytes() == BODY


def test_a_size_that_is_not_stated(web: Web, tmp_path: Path) -> None:
    web.answers["/m.onnx"].says_length = False
    assert taken(web, tmp_path / "part")[0] == SHA256
    with pytest.raises(
        RemoteError, match=r"larger than --model-download-limit .9.77 KiB."
    ):
        taken(web, tmp_path / "other", limit=10_000)


def test_a_whole_part_of_a_size_that_is_not_stated(web: Web, tmp_path: Path) -> None:
    """A process that was killed after the last byte leaves such a part."""
    web.answers["/m.onnx"].says_length = False
    part = tmp_path / "part"
    part.write_bytes(BODY)
    digest, progress = taken(web, part)
    assert digest == SHA256
    assert progress.state().startswith("980 KiB")


def test_a_wrong_checksum_leaves_nothing(web: Web, tmp_path: Path) -> None:
    part = tmp_path / "part"
    with pytest.raises(RemoteError, match=f"expected sha256 {'0' * 64}, got {SHA256}"):
        taken(web, part, checksums=(("sha256", "0" * 64),))
    assert part.read_bytes() == b""
    md5 = hashlib.md5(BODY).hexdigest()
    assert taken(web, part, checksums=(("md5", md5),))[0] == SHA256
    git = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()
    assert taken(web, part, checksums=(("git", git.upper()),))[0] == SHA256
    with pytest.raises(RemoteError, match=r"expected git "):
        taken(web, part, checksums=(("git", md5),))


def test_a_part_of_something_else_is_found_out(web: Web, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"x" * 500_000)
    assert taken(web, part, checksums=(("sha256", SHA256),))[0] == SHA256
    assert part.read_bytes() == BODY
    assert web.ranges() == ["bytes=500000-"]


def test_one_that_changes_is_told(web: Web, tmp_path: Path) -> None:
    source, file = listed(web)
    progress = Progress("model m", len(BODY), threading.Event())
    web.answers["/m.onnx"].cuts = [1000]
    web.put("/m.onnx", BODY + b"more").etag = file.tag
    with pytest.raises(SourceChanged, match="has become longer"):
        download(source, file, tmp_path / "part", progress, 0.001)
    web.put("/m.onnx", BODY[::-1])
    with pytest.raises(SourceChanged, match="has changed"):
        download(source, file, tmp_path / "other", progress, 0.001)
    source.close()


def test_it_is_given_up_in_the_end_and_what_came_is_kept(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, file = listed(web)
    web.answers["/m.onnx"].cuts = [1000] * 20
    progress = Progress("model m", len(BODY), threading.Event())
    with pytest.raises(SourceAway):
        download(source, file, tmp_path / "part", progress, 0.001)
    source.close()
    assert (tmp_path / "part").read_bytes() == BODY[:1000]
    assert len(web.asked) == TRIES
    assert "retrying in 0.001 s" in caplog.text


def test_a_byte_is_no_progress(web: Web, tmp_path: Path) -> None:
    """A server that sends one and closes would be asked a million times."""
    source, file = listed(web)
    web.answers["/m.onnx"].cuts = list(range(1, 21))
    progress = Progress("model m", len(BODY), threading.Event())
    with pytest.raises(SourceAway):
        download(source, file, tmp_path / "part", progress, 0.001)
    source.close()
    assert len(web.asked) == TRIES


def test_bytes_that_come_again_are_no_progress(web: Web, tmp_path: Path) -> None:
    """A server that cannot resume, and whose connection breaks here and there."""
    source, file = listed(web)
    web.answers["/m.onnx"].takes_ranges = False
    web.answers["/m.onnx"].cuts = [2000, 1000] * 20
    progress = Progress("model m", len(BODY), threading.Event())
    with pytest.raises(SourceAway):
        download(source, file, tmp_path / "part", progress, 0.001)
    source.close()


def test_the_end_of_the_server_ends_it(web: Web, tmp_path: Path) -> None:
    source, file = listed(web)
    stop = threading.Event()
    web.answers["/m.onnx"].cuts = [1000] * 20
    progress = Progress("model m", len(BODY), stop)
    threads = threading.Thread(target=stop.set)
    threads.start()
    with pytest.raises(FetchStopped):
        download(source, file, tmp_path / "part", progress, 1000.0)
    threads.join()
    source.close()


def test_a_full_disk_is_told(web: Web, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.symlink_to("/dev/full")
    with pytest.raises(
        RemoteError, match=r"the disk of .* is full; .* another --model-cache"
    ):
        taken(web, part)
    with pytest.raises(
        RemoteError, match=r"cannot be written \(--model-cache\): .*No such file"
    ):
        taken(web, tmp_path / "nowhere" / "part")
