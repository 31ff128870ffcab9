"""What may stand for a model's path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.repository.model_sources import RemoteCaches, is_url
from app.repository.places import ModelPlaces
from engine import InvalidConfig
from popgate_remote.urls import ModelUrl

SHA = "ab" * 32


def test_urls_and_paths_are_told_apart() -> None:
    assert all(map(is_url, ["s3://b/x", "mlflow:/m/1", "HTTPS://h/m.onnx"]))
    assert not any(map(is_url, ["model.onnx", "/a/b", "./s3:/x", "a=b", "c:/x"]))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://example.com/a/digits.onnx?X-Sig=secret", "digits"),
        ("https://example.com/digits.popef", "digits"),
        ("http://localhost:8080/digits.onnx", "digits"),
        ("hf://org/digits@main", "digits"),
        ("hf://org/name@main/onnx/digits.onnx", "digits"),
        ("oci://ghcr.io/me/digits:1", "digits"),
        ("oci://localhost:5000/digits@sha256:ab", "digits"),
        ("hf://digits@main", "digits"),
        ("mlflow:/digits/3", "digits"),
        ("mlflow:/digits@best", "digits"),
        (f"http://example.com/digits.onnx#sha256={SHA}", "digits"),
    ],
)
def test_a_model_has_the_name_of_its_file(text: str, name: str) -> None:
    url = ModelUrl.of(text)
    assert url.name == name
    assert "secret" not in str(url)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://host/m.onnx", "ftp: is not supported; supported are .*https:.*s3:"),
        ("https://", "names no model; expected a URL as in https://example.com"),
        ("https://u:secret@host/m.onnx", "user and password go into ~/.netrc"),
        ("oci://me:secret@ghcr.io/me/m:1", "oci://ghcr.io: .*go to docker login"),
        ("oci://secret@ghcr.io/me/m:1", "oci://ghcr.io: .*go to docker login"),
        ("hf://me:secret@org/m", "hf://org: .*go into the server's environment"),
        ("s3://AKID:se/secret@b/m", "s3://b: .*go into the server's environment"),
        ("s3://AKID:secret@b", "s3://b: user and password"),
        ("az://a:secret@b/m", "az://b: user and password"),
        ("ftp://u:secret@host/m.onnx", "ftp://host/m.onnx: ftp: is not supported"),
        ("https://[::1/m.onnx", "its host is not valid: Invalid IPv6 URL"),
        ("oci://[h/m:1", "its host is not valid"),
        ("http://example.com/m.onnx", "no TLS.*append its checksum"),
        (
            "https://host/m.onnx#sha256=12",
            "expected sha256= and 64 hexadecimal digits after #",
        ),
    ],
)
def test_what_is_wrong_with_a_url_is_told(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why) as raised:
        ModelUrl.of(text)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [
        ("s3://b/m", "s3fs", "s3"),
        ("gs://b/m", "gcsfs", "gcs"),
        ("az://b/m", "adlfs", "azure"),
    ],
)
def test_a_missing_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, text: str, module: str, extra: str
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, module, raising=False)
    why = rf"needs {module}, .*not installed: pip install 'popgate\[{extra}\]'"
    with pytest.raises(InvalidConfig, match=why):
        ModelUrl.of(text)


def test_a_renewed_secret_names_the_same_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("adlfs", reason="needs the extra azure")
    url, keys = ModelUrl.of("az://models/digits"), set()
    for account, secret in (("one", "AAAA=="), ("one", "BBBB=="), ("two", "AAAA==")):
        told = f"AccountName={account};AccountKey={secret};EndpointSuffix=x"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", told)
        keys.add(url.key)
        assert secret not in url.key
    assert len(keys) == 2


def test_urls_are_models_beside_paths(tmp_path: Path) -> None:
    remote = RemoteCaches(tmp_path / "cache")
    (tmp_path / "m.onnx").touch()
    urls = ["a=https://h.example/x.onnx?a=b", "https://h.example/y.onnx"]
    places = ModelPlaces.of(None, [str(tmp_path / "m.onnx"), *urls], remote)
    assert places.names() == ["a", "m", "y"]
    assert {n: u.text for n, u in places.named.items() if isinstance(u, ModelUrl)} == {
        "a": "https://h.example/x.onnx?a=b",
        "y": "https://h.example/y.onnx",
    }
    source = places.scan("a")
    assert source is not None
    assert source.problem == "https://h.example/x.onnx is not downloaded yet"
    assert not (tmp_path / "cache").exists()  # looking is all that was done
    with pytest.raises(InvalidConfig, match="two models have the name 'm'"):
        ModelPlaces.of(None, [str(tmp_path / "m.onnx"), "https://h/m.onnx"], remote)
