"""Artifacts of a registry that speaks the distribution API over a socket."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.repository.model_sources import RemoteError
from plugins.remote.tests.web import Answer, Web, serving
from popgate_remote import http_files
from popgate_remote.cached_models import CachedModels
from popgate_remote.errors import SourceAway
from popgate_remote.oci import TITLE, UNPACK, OciSource, credentials_of
from popgate_remote.urls import ModelUrl

BODY = bytes(range(241)) * 5000
REPOSITORY = "/v2/me/digits"


def sha256(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def push(web: Web, tag: str, files: dict[str, bytes], **annotations: str) -> str:
    """As `oras push` does; the digest of the manifest."""
    layers = []
    for name, body in files.items():
        web.put(f"{REPOSITORY}/blobs/{sha256(body)}", body)
        told = {TITLE: name, **annotations}
        layers.append(
            {
                "mediaType": "application/octet-stream",
                "digest": sha256(body),
                "size": len(body),
                "annotations": told,
            }
        )
    return put_manifest(web, tag, {"layers": layers})


def put_manifest(web: Web, tag: str, manifest: object) -> str:
    text = json.dumps(manifest).encode()
    digest = sha256(text)
    for reference in (tag, digest):
        answer = web.put(f"{REPOSITORY}/manifests/{reference}", text)
        answer.headers = {"Docker-Content-Digest": digest}
    return digest


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Web]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with serving() as found:
        yield found


def test_an_artifact_is_taken_and_followed(web: Web, tmp_path: Path) -> None:
    first = push(web, "1", {"1/m.onnx": BODY, "config.toml": b""})
    url = ModelUrl.of(f"oci://{web.host}/me/digits:1")
    assert url.name == "digits"
    remote = CachedModels(tmp_path / "cache")
    assert remote.fetch("model digits", url)
    folder = remote.folder_of(url)
    assert folder is not None
    assert (folder / "1" / "m.onnx").read_bytes() == BODY
    assert not remote.fetch("model digits", url)
    # The tag moves; what both have in common does not come again.
    push(web, "1", {"1/m.onnx": BODY, "2/m.onnx": BODY[::-1]})
    web.asked.clear()
    assert remote.fetch("model digits", url)
    blobs = [path for _, path, _ in web.asked if "/blobs/" in path]
    assert blobs == [f"{REPOSITORY}/blobs/{sha256(BODY[::-1])}"]
    # A digest does not.
    pinned = ModelUrl.of(f"oci://{web.host}/me/digits@{first}")
    assert remote.fetch("model digits", pinned)
    folder = remote.folder_of(pinned)
    assert folder is not None
    assert not (folder / "2").exists()


def test_a_blob_that_breaks_off_goes_on(web: Web, tmp_path: Path) -> None:
    push(web, "latest", {"m.onnx": BODY})
    blob = f"{REPOSITORY}/blobs/{sha256(BODY)}"
    web.answers[blob].cuts = [300_000]
    url = ModelUrl.of(f"oci://{web.host}/me/digits")
    assert CachedModels(tmp_path).fetch("model digits", url)
    assert web.ranges() == ["bytes=300000-"]


def test_content_of_another_digest_is_refused(web: Web, tmp_path: Path) -> None:
    digest = push(web, "1", {"m.onnx": BODY})
    web.answers[f"{REPOSITORY}/blobs/{sha256(BODY)}"].body = BODY[::-1]
    remote = CachedModels(tmp_path)
    url = ModelUrl.of(f"oci://{web.host}/me/digits:1")
    with pytest.raises(RemoteError, match="its checksum is wrong: expected sha256"):
        remote.fetch("model digits", url)
    assert remote.folder_of(url) is None
    other = push(web, "2", {"m.onnx": BODY[:5]})
    answers = web.answers
    answers[f"{REPOSITORY}/manifests/{digest}"] = answers[f"{REPOSITORY}/manifests/2"]
    pinned = OciSource(f"{web.host}/me/digits@{digest}")
    with pytest.raises(RemoteError, match=f"has the digest {other}, expected {digest}"):
        list(pinned.files())
    pinned.close()


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ([], "an invalid manifest"),
        ({"manifests": [], "mediaType": "an.index"}, "lists no files, but is an.index"),
        ({"layers": [1]}, "an invalid layer"),
        ({"layers": [{"annotations": [TITLE]}]}, "an invalid layer"),
        (
            {"layers": [{"mediaType": "a.tar"}]},
            "a layer .a.tar. is not a file; push the",
        ),
        ({"layers": [{"annotations": {TITLE: "m.onnx"}}]}, "has no SHA-256 or no size"),
        (
            {"layers": [{"annotations": {TITLE: "m", UNPACK: "true"}}]},
            "m is a packed folder; push its files one by one",
        ),
    ],
)
def test_what_is_no_artifact_of_files_is_told(
    web: Web, manifest: object, text: str
) -> None:
    put_manifest(web, "1", manifest)
    source = OciSource(f"{web.host}/me/digits:1")
    with pytest.raises(RemoteError, match=text):
        list(source.files())
    source.close()


def test_a_manifest_that_is_nested_without_end_is_told(web: Web) -> None:
    web.put(f"{REPOSITORY}/manifests/1", b"[" * 100_000)
    source = OciSource(f"{web.host}/me/digits:1")
    with pytest.raises(RemoteError, match="an invalid manifest"):
        list(source.files())
    source.close()


@pytest.mark.parametrize("text", ["digits", "HOST/Digits", "h/d:1:2", "h/d@sha256:12"])
def test_what_is_no_reference_is_told(text: str) -> None:
    with pytest.raises(RemoteError, match=r"as in oci://ghcr.io/me/digits:1"):
        OciSource(text)


def test_a_registry_that_wants_a_token(web: Web, tmp_path: Path) -> None:
    push(web, "1", {"m.onnx": BODY})
    pair = base64.b64encode(b"me:secret").decode()
    told = f'Bearer realm="{web.url}/token",service="registry",scope="a:b:pull"'
    web.put("/token", b'{"token": "of-a-moment"}')

    def check(path: str, key: str) -> Answer | None:
        wanted = f"Basic {pair}" if path == "/token" else "Bearer of-a-moment"
        refused = Answer(status=401, headers={"WWW-Authenticate": told})
        return None if key == wanted else refused

    web.check = check
    source = OciSource(f"{web.host}/me/digits:1")
    with pytest.raises(
        RemoteError, match=f"denies access .401.; run docker login {web.host}"
    ):
        list(source.files())
    source.close()
    docker = tmp_path / "docker"
    docker.mkdir()
    auths = {"auths": {web.host: {"auth": pair}}}
    (docker / "config.json").write_text(json.dumps(auths))
    web.asked.clear()
    source = OciSource(f"{web.host}/me/digits:1")
    (file,) = source.files()
    with source.open(file, 0) as (_, chunks):
        assert b"".join(chunks) == BODY
    source.close()
    asked = [path for _, path, _ in web.asked]
    token = "/token?scope=a%3Ab%3Apull&service=registry"
    assert [path for path in asked if "token" in path] == [token]  # once for both


def test_a_token_server_without_a_valid_host_is_not_asked(web: Web) -> None:
    told = {"WWW-Authenticate": 'Bearer realm="https://[::1/token"'}
    web.check = lambda path, key: Answer(status=401, headers=told)
    source = OciSource(f"{web.host}/me/digits:1")
    with pytest.raises(RemoteError, match=r"denies access .401."):
        list(source.files())
    source.close()


def test_tokens_come_in_time_and_are_small(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_files, "TIMEOUT", 0.5)
    told = {"WWW-Authenticate": f'Bearer realm="{web.url}/token"'}
    refused = Answer(status=401, headers=told)
    web.check = lambda path, key: None if path == "/token" else refused
    token = web.put("/token", bytes(1 << 20))
    source = OciSource(f"{web.host}/me/digits:1")
    with pytest.raises(RemoteError, match="token answered with more than"):
        list(source.files())
    token.body, token.gate = bytes(1 << 17), threading.Event()
    try:
        with pytest.raises(SourceAway):  # half of it has come
            list(source.files())
    finally:
        token.gate.set()
        source.close()


def test_a_registry_that_wants_a_password_and_one_that_wants_it_in_the_open(
    web: Web, tmp_path: Path
) -> None:
    push(web, "1", {"m.onnx": BODY})
    pair = base64.b64encode(b"me:secret").decode()
    docker = tmp_path / "docker"
    docker.mkdir()
    auths = {"auths": {web.host: {"auth": pair}}}
    (docker / "config.json").write_text(json.dumps(auths))
    told = 'Basic realm="registry"'

    def check(path: str, key: str) -> Answer | None:
        refused = Answer(status=401, headers={"WWW-Authenticate": told})
        return None if key == f"Basic {pair}" else refused

    web.check = check
    source = OciSource(f"{web.host}/me/digits:1")
    assert [file.name for file in source.files()] == ["m.onnx"]
    source.close()
    told = 'Bearer realm="http://token.example/"'
    web.check = lambda path, key: Answer(status=401, headers={"WWW-Authenticate": told})
    source = OciSource(f"{web.host}/me/digits:1")
    with pytest.raises(RemoteError, match="denies access"):
        list(source.files())
    source.close()


def test_a_place_that_blobs_are_at_does_not_hear_who_we_are(
    web: Web, tmp_path: Path
) -> None:
    push(web, "1", {"m.onnx": BODY})
    docker = tmp_path / "docker"
    docker.mkdir()
    pair = base64.b64encode(b"me:secret").decode()
    auths = {"auths": {web.host: {"auth": pair}}}
    (docker / "config.json").write_text(json.dumps(auths))
    other = web.url.replace("127.0.0.1", "localhost")
    blob = f"{REPOSITORY}/blobs/{sha256(BODY)}"
    web.answers[blob] = Answer(status=307, headers={"Location": f"{other}/cdn"})
    web.put("/thief", b'{"token": "x"}')
    curious = {"WWW-Authenticate": f'Bearer realm="{other}/thief"'}
    wants = Answer(status=401, headers={"WWW-Authenticate": 'Basic realm="r"'})

    def check(path: str, key: str) -> Answer | None:
        if path == "/cdn":
            return Answer(status=401, headers=curious)
        return None if key == f"Basic {pair}" or path == "/thief" else wants

    web.check = check
    source = OciSource(f"{web.host}/me/digits:1")
    (file,) = source.files()
    with pytest.raises(RemoteError, match="denies access"), source.open(file, 0):
        pass
    web.check = lambda path, key: None
    web.put("/cdn", BODY)
    with source.open(file, 0) as (_, chunks):
        assert b"".join(chunks) == BODY
    source.close()
    asked = [path for _, path, _ in web.asked]
    assert not any(path.startswith("/thief") for path in asked)
    told = zip(asked, web.authorizations, strict=True)
    assert [key for path, key in told if path == "/cdn"] == ["", ""]


def test_credentials_of_a_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert credentials_of("ghcr.io") == ("", "")
    config = tmp_path / "config.json"
    config.write_text('{"credHelpers": {"ghcr.io": "mine"}}')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(
        RemoteError, match=r"docker-credential-mine returned no credentials for"
    ):
        credentials_of("ghcr.io")
    helper = tmp_path / "docker-credential-mine"
    helper.write_text(
        '#!/bin/sh\nread s\necho "{\\"Username\\":\\"$s\\",\\"Secret\\":\\"x\\"}"\n'
    )
    helper.chmod(0o755)
    assert credentials_of("ghcr.io") == ("ghcr.io", "x")
    config.write_text('{"credHelpers": {"ghcr.io": "../mine"}}')
    with pytest.raises(RemoteError, match="is not the name of a credential helper"):
        credentials_of("ghcr.io")
    config.write_text('{"auths": 1}')
    with pytest.raises(RemoteError, match=r"config.json cannot be read"):
        credentials_of("ghcr.io")
