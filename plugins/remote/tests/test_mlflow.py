"""Versions of models of a server that speaks as MLflow's tracking server does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.repository.model_sources import RemoteError
from plugins.remote.tests.web import Answer, Web, serving
from popgate_remote import listing
from popgate_remote.cached_models import CachedModels
from popgate_remote.listing import RemoteFile
from popgate_remote.mlflow import MlflowSource
from popgate_remote.source import Source
from popgate_remote.urls import ModelUrl

BODY = bytes(range(233)) * 3000
API = "/api/2.0/mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


def put(web: Web, path: str, document: object) -> None:
    web.put(path, json.dumps(document).encode())


def register(web: Web, version: str, uri: str, made: int = 1) -> None:
    asked = f"name=my+digits&version={version}"
    told = {"model_version": {"version": version, "creation_timestamp": made}}
    put(web, f"{API}/model-versions/get?{asked}", told)
    told = {"artifact_uri": uri}  # type: ignore[dict-item]
    put(web, f"{API}/model-versions/get-download-uri?{asked}", told)


def store(web: Web, root: str, files: dict[str, bytes]) -> None:
    """The answers of the server's own store of artifacts."""
    folders: dict[str, list[dict[str, object]]] = {root: []}
    for name, body in files.items():
        folder, _, last = f"{root}/{name}".rpartition("/")
        if folder not in folders:
            folders[folder] = []
            folders[root].append({"path": folder.rpartition("/")[2], "is_dir": True})
        entry = {"path": last, "is_dir": False, "file_size": str(len(body))}
        folders[folder].append(entry)
        web.put(f"{ARTIFACTS}/{root}/{name}", body)
    for folder, entries in folders.items():
        query = folder.replace("/", "%2F")
        put(web, f"{ARTIFACTS}?path={query}", {"files": entries})


def no_bucket(url: str) -> Source:
    raise AssertionError(url)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    with serving() as found:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{found.url}/")
        yield found


def test_models_of_two_servers_are_two(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one cache, as a machine has that serves from staging and from production."""
    url = ModelUrl.of("mlflow:/my%20digits/3")
    remote = CachedModels(tmp_path)
    with serving() as other:
        for server, body in ((web, BODY), (other, BODY[::-1])):
            register(server, "3", "mlflow-artifacts:/1/models/m-1")
            store(server, "1/models/m-1", {"model.onnx": body})
            monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
            assert remote.fetch("model digits", url)
    for server, body in ((web, BODY), (other, BODY[::-1])):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        folder = remote.folder_of(url)
        assert folder is not None
        assert (folder / "model.onnx").read_bytes() == body


def test_a_version_is_taken_and_an_alias_followed(web: Web, tmp_path: Path) -> None:
    register(web, "3", "mlflow-artifacts:/1/models/m-1")
    files = {"model.onnx": BODY, "MLmodel": b"flavors:", "data/x.txt": b"x"}
    store(web, "1/models/m-1", files)
    alias = f"{API}/registered-models/alias?name=my+digits&alias=best"
    put(web, alias, {"model_version": {"version": "3"}})
    url = ModelUrl.of("mlflow:/my%20digits@best")
    remote = CachedModels(tmp_path)
    assert remote.fetch("model digits", url)
    folder = remote.folder_of(url)
    assert folder is not None
    for name, body in files.items():
        assert (folder / name).read_bytes() == body
    assert not remote.fetch("model digits", url)
    register(web, "4", "mlflow-artifacts:/1/models/m-2")
    store(web, "1/models/m-2", {"model.onnx": BODY[::-1]})
    put(web, alias, {"model_version": {"version": "4"}})
    assert remote.fetch("model digits", url)
    folder = remote.folder_of(url)
    assert folder is not None
    assert (folder / "model.onnx").read_bytes() == BODY[::-1]


def test_folders_without_end_are_not_listed(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_FOLDERS", 3)
    register(web, "3", "mlflow-artifacts:/1/models/m-1")
    store(web, "1/models/m-1", {f"{n}/model.onnx": BODY for n in range(1, 4)})
    with pytest.raises(RemoteError, match="more than 3 folders"):
        CachedModels(tmp_path).fetch("digits", ModelUrl.of("mlflow:/my%20digits/3"))


def test_a_version_by_its_place_in_a_run(web: Web) -> None:
    """As `create_model_version(source="runs:/...")` registers it."""
    register(web, "1", "runs:/abc/model")
    store(web, "7/abc/artifacts/model", {"model.onnx": BODY})
    asked = f"{API}/runs/get?run_id=abc"
    put(
        web,
        asked,
        {"run": {"info": {"artifact_uri": "mlflow-artifacts:/7/abc/artifacts"}}},
    )
    source = MlflowSource("my%20digits/1", no_bucket)
    (file,) = source.files()
    with source.open(file, 5) as (begins, chunks):
        assert b"".join(chunks) == BODY[begins:]
    put(web, asked, {})
    with pytest.raises(RemoteError, match="where the files of run abc are"):
        list(source.files())
    source.close()


def test_artifacts_in_a_bucket_come_from_there(web: Web) -> None:
    register(web, "1", "s3://bucket/1/m-1")
    asked: list[str] = []

    class Bucket(MlflowSource):
        def __init__(self, url: str) -> None:
            asked.append(url)

        def files(self) -> Iterator[RemoteFile]:
            yield RemoteFile("model.onnx", "there", 3, "t")

        def close(self) -> None:
            asked.append("closed")

    source = MlflowSource("my%20digits/1", Bucket)
    assert [file.place for file in source.files()] == ["there"]
    source.close()
    assert asked == ["s3://bucket/1/m-1", "closed"]
    register(web, "1", "/var/lib/mlflow/1")
    source = MlflowSource("my%20digits/1", no_bucket)
    with pytest.raises(
        RemoteError, match="its files are at '/var/lib/mlflow/1'; PopGate supports"
    ):
        list(source.files())
    source.close()


def test_who_we_are(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    register(web, "1", "mlflow-artifacts:/m")
    store(web, "m", {"model.onnx": BODY})
    web.check = lambda path, key: None if key else Answer(status=403)

    def listed() -> str:
        source = MlflowSource("my%20digits/1", no_bucket)
        try:
            list(source.files())
        finally:
            source.close()
        return web.authorizations[-1]

    with pytest.raises(RemoteError, match="set MLFLOW_TRACKING_TOKEN"):
        listed()
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    assert listed() == "Basic bWU6c2VjcmV0"
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token")
    assert listed() == "Bearer token"


def test_what_is_no_version_and_no_server_is_told(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("digits", "digits/x", "digits/1/2", "digits@"):
        with pytest.raises(RemoteError, match="as in mlflow:/digits/3"):
            MlflowSource(text, no_bucket)
    put(web, f"{API}/registered-models/alias?name=digits&alias=best", {})
    put(web, f"{API}/registered-models/alias?name=d&alias=odd", {"model_version": [1]})
    put(web, f"{API}/model-versions/get?name=digits&version=1", [])
    for text, why in (
        ("digits@best", "has no version"),
        ("d@odd", "has no version"),
        ("digits/1", "something other"),
    ):
        source = MlflowSource(text, no_bucket)
        with pytest.raises(RemoteError, match=why):
            list(source.files())
        source.close()
    for place, path, status in (
        ("d@old", "registered-models/alias?name=d&alias=old", 400),
        ("d/7", "model-versions/get?name=d&version=7", 404),
    ):
        put(web, f"{API}/{path}", {})
        web.answers[f"{API}/{path}"].status = status
        source = MlflowSource(place, no_bucket)
        what = "alias 'old'" if status == 400 else "version '7'"
        why = f"MLflow has no name 'd', {what}: .*{status}.*; check the URL"
        with pytest.raises(RemoteError, match=why):
            list(source.files())
        source.close()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    with pytest.raises(RemoteError, match="set MLFLOW_TRACKING_URI to the URL"):
        MlflowSource("digits/1", no_bucket)
