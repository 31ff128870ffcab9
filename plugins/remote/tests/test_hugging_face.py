"""Repositories of a server that speaks as Hugging Face's does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.repository.model_sources import RemoteError
from plugins.remote.tests.web import Answer, Web, serving
from popgate_remote.cached_models import CachedModels
from popgate_remote.errors import SourceAway
from popgate_remote.hugging_face import HuggingFaceSource
from popgate_remote.urls import ModelUrl

BODY = bytes(range(239)) * 5000
TEXT = b"max_batch_size = 8\n"


def push(
    web: Web, commit: str, files: dict[str, bytes], revision: str = "main"
) -> None:
    """Large files have a SHA-256, small ones the digest of a git blob."""
    siblings = []
    for name, body in files.items():
        web.put(f"/me/digits/resolve/{commit}/{name}", body)
        blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        told: dict[str, object] = {"rfilename": name, "size": len(body), "blobId": blob}
        if len(body) > 1000:
            digest = hashlib.sha256(body).hexdigest()
            told["lfs"] = {"sha256": digest, "size": len(body), "pointerSize": 134}
        siblings.append(told)
    document = json.dumps({"sha": commit, "siblings": siblings}).encode()
    web.put(f"/api/models/me/digits/revision/{revision}", document)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Web]:
    with serving() as found:
        monkeypatch.setenv("HF_ENDPOINT", f"{found.url}/")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield found


def test_a_repository_is_taken_and_followed(web: Web, tmp_path: Path) -> None:
    files = {"model.onnx": BODY, "config.toml": TEXT, ".gitattributes": b"x"}
    push(web, "c1", files)
    url = ModelUrl.of("hf://me/digits")
    assert url.name == "digits"
    remote = CachedModels(tmp_path / "cache")
    assert remote.fetch("model digits", url)
    folder = remote.folder_of(url)
    assert folder is not None
    assert (folder / "model.onnx").read_bytes() == BODY
    assert not (folder / ".gitattributes").exists()
    # A commit that changes nothing of the model is none to us.
    push(web, "c2", {**files, ".gitattributes": b"y"})
    assert not remote.fetch("model digits", url)
    push(web, "c3", {**files, "config.toml": b"max_batch_size = 9\n"})
    web.asked.clear()
    assert remote.fetch("model digits", url)
    came = [path for _, path, _ in web.asked if "/resolve/" in path]
    assert came == ["/me/digits/resolve/c3/config.toml"]


def test_one_file_comes_with_its_data(web: Web) -> None:
    names = ("onnx/model.onnx", "onnx/model.onnx_data", "onnx/other.onnx", "README.md")
    push(web, "c1", dict.fromkeys(names, BODY), "v1.0")
    source = HuggingFaceSource("me/digits@v1.0/onnx/model.onnx")
    assert [f.name for f in source.files()] == ["model.onnx", "model.onnx_data"]
    source.close()
    source = HuggingFaceSource("me/digits@v1.0/onnx")
    assert [f.name for f in source.files()] == [
        "model.onnx",
        "model.onnx_data",
        "other.onnx",
    ]
    source.close()
    for place, text in (
        ("README.md", "is neither"),
        ("none", "has no file or folder none"),
    ):
        source = HuggingFaceSource(f"me/digits@v1.0/{place}")
        with pytest.raises(RemoteError, match=text):
            list(source.files())
        source.close()


@pytest.mark.parametrize("name", ["model.onnx", "config.toml"])
def test_content_of_another_digest_is_refused(
    web: Web, tmp_path: Path, name: str
) -> None:
    files = {"model.onnx": BODY, "config.toml": TEXT}
    push(web, "c1", files)
    web.put(f"/me/digits/resolve/c1/{name}", files[name][::-1])
    with pytest.raises(RemoteError, match=f"{name}: its checksum is wrong"):
        CachedModels(tmp_path).fetch("model digits", ModelUrl.of("hf://me/digits"))


def test_tokens_are_those_of_the_library(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(web, "c1", {"model.onnx": BODY})
    web.check = lambda path, key: None if key else Answer(status=401)
    (tmp_path / "hf").mkdir()

    def listed() -> str:
        source = HuggingFaceSource("me/digits")
        try:
            list(source.files())
        finally:
            source.close()
        return web.authorizations[-1]

    with pytest.raises(RemoteError, match=r"denies access \(401\); .* set HF_TOKEN"):
        listed()
    (tmp_path / "hf" / "token").write_text("of-a-file\n")
    assert listed() == "Bearer of-a-file"
    monkeypatch.setenv("HF_TOKEN", "of-a-variable")
    assert listed() == "Bearer of-a-variable"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceAway, match="HF_HUB_OFFLINE is set"):
        listed()


@pytest.mark.parametrize("text", ["digits", "a/b@", "a/b@c@d/x", "../b"])
def test_what_is_no_repository_is_told(text: str) -> None:
    with pytest.raises(
        RemoteError, match="is not a repository; expected a URL as in hf://org/name"
    ):
        HuggingFaceSource(text)


@pytest.mark.parametrize(
    "document",
    [
        b"[]",
        b"{}",
        b'{"sha": "c", "siblings": [{"rfilename": "m.onnx"}]}',
        b'{"sha": "c", "siblings": [{"rfilename": "m", "blobId": "b", "size": "x"}]}',
    ],
)
def test_what_is_no_list_of_files_is_told(web: Web, document: bytes) -> None:
    web.put("/api/models/me/digits/revision/main", document)
    source = HuggingFaceSource("me/digits")
    with pytest.raises(
        RemoteError, match=r"a list of files|states no size or no digest"
    ):
        list(source.files())
    source.close()
