"""Real servers of all three kinds of buckets: what comes, and what a kill leaves.

Covers: app/repository/remote/buckets.py.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.repository.places import ModelPlaces
from app.repository.remote import buckets
from app.repository.remote.errors import RemoteError
from app.repository.remote.remote_models import RemoteModels
from app.repository.remote.urls import RemoteUrl
from tests.app.repository.remote.stores import Store, azurite, store
from tests.support import WAIT, until

NEEDS = {
    "s3": ("s3fs", "moto.server"),
    "gs": ("gcsfs", "gcp_storage_emulator"),
    "az": ("adlfs",),
}
BODY = bytes(range(253)) * 4000
BLOCK = 1 << 16  # of 16, of which several are ahead

FETCH = """
import sys
from pathlib import Path
from app.repository.remote import buckets
from app.repository.remote.remote_models import RemoteModels
from app.repository.remote.urls import RemoteUrl
buckets.BLOCK = 1 << 16
RemoteModels(Path(sys.argv[1])).fetch("model m", RemoteUrl.of(sys.argv[2]))
"""


@pytest.fixture(scope="module", params=sorted(NEEDS))
def there(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A server with a model in it."""
    scheme = request.param
    for module in NEEDS[scheme]:
        pytest.importorskip(module, reason="needs the extra bucket-tests")
    if scheme == "az" and azurite() is None:
        pytest.skip("needs Azurite: make test-buckets")
    folder = tmp_path_factory.mktemp(scheme)
    with pytest.MonkeyPatch.context() as patch, store(scheme, folder) as found:
        for name, value in found.variables.items():
            patch.setenv(name, value)
        fill(found)
        yield found


def fill(there: Store) -> None:
    there.put("digits/1/m.onnx", BODY)
    there.put("digits/config.toml", b"max_batch_size = 16\n")


def url_of(there: Store) -> RemoteUrl:
    return RemoteUrl.of(f"{there.scheme}://models/digits")


def test_a_model_comes_with_its_checksums(there: Store, tmp_path: Path) -> None:
    source = url_of(there).open()
    found = {file.name: file for file in source.files()}
    assert sorted(found) == ["1/m.onnx", "config.toml"]
    model = found["1/m.onnx"]
    assert model.size == len(BODY)
    assert model.tag
    assert source.checksums(model) == (("md5", hashlib.md5(BODY).hexdigest()),)
    with source.open(model, 1000) as (begins, chunks):
        assert b"".join(chunks) == BODY[begins:]
    for path in ("models/none", "nope/digits"):
        missing = RemoteUrl.of(f"{there.scheme}://{path}").open()
        with pytest.raises(RemoteError, match=f"there is nothing at .*{path}"):
            list(missing.files())
    root, remote = tmp_path / "models", RemoteModels(tmp_path / "cache")
    (root / "m").mkdir(parents=True)
    (root / "m" / "config.toml").write_text(f'source = "{url_of(there).text}"\n')
    places = ModelPlaces(root, {}, remote)
    remote.fetch("model m", url_of(there))
    served = places.scan("m")
    assert served is not None
    assert served.problem == ""
    assert served.config.max_batch_size == 16
    assert served.versions[0].files[0].read_bytes() == BODY
    assert not remote.fetch("model m", url_of(there))


def test_a_server_of_ours_that_is_killed_goes_on_where_it_was(
    there: Store, tmp_path: Path
) -> None:
    there.relay.hold(len(BODY) // 2)
    command = [sys.executable, "-c", FETCH, str(tmp_path), url_of(there).text]
    process = subprocess.Popen(command, env={**os.environ, **there.variables})
    parts = tmp_path / "parts"
    until(lambda: parts.is_dir() and any(p.stat().st_size for p in parts.iterdir()))
    until(lambda: there.relay.sent >= len(BODY) // 2)
    process.send_signal(signal.SIGKILL)
    assert process.wait(WAIT) == -signal.SIGKILL
    there.relay.let_go()
    remote = RemoteModels(tmp_path)
    assert remote.folder_of(url_of(there)) is None  # half a model is none
    came = sum(part.stat().st_size for part in parts.iterdir())
    assert 0 < came < len(BODY)
    there.relay.sent = 0
    assert remote.fetch("model m", url_of(there))
    assert len(BODY) - came <= there.relay.sent < len(BODY)
    folder = remote.folder_of(url_of(there))
    assert folder is not None
    assert (folder / "1" / "m.onnx").read_bytes() == BODY


def test_a_store_that_is_killed_gives_a_whole_model_or_none(
    there: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "BLOCK", BLOCK)
    remote, url = RemoteModels(tmp_path), url_of(there)
    there.relay.hold(len(BODY) // 2)
    ended: list[RemoteError | bool] = []

    def fetch() -> None:
        try:
            ended.append(remote.fetch("model m", url))
        except RemoteError as e:
            ended.append(e)

    taking = threading.Thread(target=fetch)
    taking.start()
    until(lambda: there.relay.sent >= len(BODY) // 2)
    there.kill()
    there.relay.let_go()
    assert remote.folder_of(url) is None
    there.start()
    fill(there)  # what it has lost: none of them promises to keep what it was given
    taking.join(WAIT)
    if remote.folder_of(url) is None:
        assert isinstance(ended[0], RemoteError)
        assert remote.fetch("model m", url)
    folder = remote.folder_of(url)
    assert folder is not None
    assert (folder / "1" / "m.onnx").read_bytes() == BODY
