"""Buckets: a real server of S3, and two other file systems of fsspec."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.repository.model_sources import RemoteError
from plugins.remote.tests.web import Answer, serving
from popgate_remote import buckets
from popgate_remote.buckets import _CHECKSUMS, BucketSource, _explained
from popgate_remote.errors import SourceAway, SourceChanged
from popgate_remote.listing import MAX_FOLDERS, RemoteFile

fsspec = pytest.importorskip("fsspec", reason="needs the extra s3, gcs or azure")

MODEL = bytes(range(256)) * 100
MD5 = hashlib.md5(MODEL).hexdigest()


def content(source: BucketSource, file: RemoteFile, start: int = 0) -> bytes:
    with source.open(file, start) as (begins, chunks):
        assert begins == start
        return b"".join(chunks)


def names(source: BucketSource) -> list[str]:
    return sorted(file.name for file in source.files())


def put(client: Any, key: str, body: bytes = MODEL, **options: Any) -> None:
    client.put_object(Bucket="models", Key=key, Body=body, **options)


def test_a_folder_and_a_file_in_s3(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BLOCK", 1000)  # many, of which several are ahead
    for key in ("digits/1/m.onnx", "digits/config.toml", "digits/1/m.onnx_data"):
        put(s3, key)
    put(s3, "digits/", b"")
    put(s3, "digits/1/", b"")
    put(s3, "digits-2/other.onnx")
    source = BucketSource.of("s3", "models/digits/")
    assert names(source) == ["1/m.onnx", "1/m.onnx_data", "config.toml"]
    file = next(f for f in source.files() if f.name == "1/m.onnx")
    assert (file.size, file.tag) == (len(MODEL), f'"{MD5}"')
    assert source.checksums(file) == (("md5", MD5),)
    assert content(source, file, 1000) == MODEL[1000:]
    one = BucketSource.of("s3", "models/digits/1/m.onnx")
    assert names(one) == ["m.onnx", "m.onnx_data"]


def test_checksums_of_s3(s3: Any) -> None:
    put(s3, "sha.onnx", ChecksumAlgorithm="SHA256")
    put(s3, "kms.onnx", ServerSideEncryption="aws:kms")
    part = MODEL * 250  # over 5 MiB, which all parts but the last have to have
    upload = s3.create_multipart_upload(Bucket="models", Key="parts.onnx")
    where = {"Bucket": "models", "Key": "parts.onnx", "UploadId": upload["UploadId"]}
    done = [
        {"PartNumber": n, "ETag": s3.upload_part(**where, PartNumber=n, Body=b)["ETag"]}
        for n, b in ((1, part), (2, b"end"))
    ]
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": done})
    found = {}
    for name in ("sha.onnx", "kms.onnx", "parts.onnx"):
        source = BucketSource.of("s3", f"models/{name}")
        (file,) = source.files()
        found[name] = dict(source.checksums(file))
    assert found["sha.onnx"]["sha256"] == hashlib.sha256(MODEL).hexdigest()
    # What is no digest of the content is not taken for one.
    assert found["kms.onnx"] == {}
    assert found["parts.onnx"] == {}
    (file,) = source.files()
    assert content(source, file) == part + b"end"


def test_what_is_not_there_or_refused_in_s3(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    for path in ("models/none", "nope/digits"):
        with pytest.raises(RemoteError, match=f"s3://{path} does not exist"):
            names(BucketSource.of("s3", path))
    put(s3, "a.onnx")
    source = BucketSource.of("s3", "models/a.onnx")
    (file,) = source.files()
    put(s3, "a.onnx", MODEL[:100])
    with pytest.raises(SourceChanged, match="has changed"):
        source.checksums(file)
    with pytest.raises(SourceChanged, match="has become shorter"):
        content(source, file, 1000)
    with pytest.raises(SourceChanged, match="has become shorter"):
        content(source, file)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(RemoteError, match=r"denies access: .*set AWS_ACCESS_KEY_ID"):
        names(BucketSource.of("s3", "models/a.onnx"))


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_the_way_is_through_a_proxy(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
    pytest.importorskip(modules[scheme], reason="needs the extra bucket-tests")
    store = "http://store.invalid"
    for name, value in {
        "AWS_ENDPOINT_URL": store,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "STORAGE_EMULATOR_HOST": store,
        "FSSPEC_GS_TOKEN": "anon",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;"
        f"AccountName=a;AccountKey=a2V5;BlobEndpoint={store}/a;",
    }.items():
        monkeypatch.setenv(name, value)
    with serving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        fsspec.filesystem(scheme).clear_instance_cache()
        with pytest.raises(RemoteError, match="does not exist"):
            names(BucketSource.of(scheme, "models/digits"))
        fsspec.filesystem(scheme).clear_instance_cache()
    assert proxy.asked  # there is no other way to that name


def test_any_other_file_system_of_fsspec(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe("/bucket/m/1/model.onnx", MODEL)
    memory.pipe("/bucket/readme.txt", MODEL)
    assert names(BucketSource(memory, "/bucket/m")) == ["1/model.onnx"]
    with pytest.raises(RemoteError, match=r"neither in .onnx nor in .popef"):
        names(BucketSource(memory, "/bucket/readme.txt"))
    deep = "/".join("abcdefghi")
    memory.pipe(f"/bucket/m/{deep}/model.onnx", MODEL)
    with pytest.raises(RemoteError, match="nested more than 8 deep"):
        names(BucketSource(memory, "/bucket/m"))
    for number in range(MAX_FOLDERS):
        memory.pipe(f"/bucket/wide/{number}/x.txt", b"")
    with pytest.raises(RemoteError, match=f"more than {MAX_FOLDERS} folders"):
        names(BucketSource(memory, "/bucket/wide"))
    memory.store.clear()

    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(MODEL)
    source = BucketSource(fsspec.filesystem("file"), str(tmp_path))
    (file,) = source.files()
    assert file.tag
    assert content(source, file, 5) == MODEL[5:]
    (tmp_path / "1" / "model.onnx").write_bytes(MODEL + b"x")
    (other,) = source.files()
    assert other.identity != file.identity


@pytest.mark.parametrize(
    ("scheme", "info", "sums"),
    [
        ("gs", {"md5Hash": "XrY7u+Ae7tCTyyK7j1rNww=="}, True),
        ("gs", {"crc32c": "AAAAAA=="}, False),  # composed of several
        ("az", {"content_settings": {"content_md5": bytearray(16)}}, True),
        ("az", {"content_settings": {"content_md5": None}}, False),
    ],
)
def test_checksums_as_other_libraries_state_them(
    scheme: str, info: dict[str, Any], sums: bool
) -> None:
    file = RemoteFile("m.onnx", "b/m.onnx", 3)
    found = dict(
        _CHECKSUMS[scheme](SimpleNamespace(info=lambda place, **_: info), file)
    )
    assert set(found) == ({"md5"} if sums else set())
    if scheme == "gs" and sums:
        assert found["md5"] == "5eb63bbbe01eeed093cb22bb8f5acdc3"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PermissionError("no"), RemoteError, "denies access: no; set GOOGLE_APPL"),
        (TimeoutError(), SourceAway, "gs://b/m: no answer in time"),
        (OSError("Connection reset"), SourceAway, "gs://b/m: Connection reset"),
        (ValueError("no account"), RemoteError, "gs://b/m: no account"),
        (FileNotFoundError(), RemoteError, "gs://b/m does not exist"),
    ],
)
def test_what_libraries_raise_is_told(
    error: Exception, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text), _explained("gs", "b/m"):
        raise error


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("400", RemoteError, r"access: HeadObject: Bad Request .*expired\); set AWS"),
        (
            "InvalidToken",
            RemoteError,
            "denies access: HeadObject: Bad Request; set AWS",
        ),
        ("SlowDown", SourceAway, "s3://b/m: HeadObject: Bad Request$"),
    ],
)
def test_keys_of_s3_that_have_expired(
    code: str, kind: type[Exception], text: str
) -> None:
    cause = Exception()
    vars(cause)["response"] = {"Error": {"Code": code}}
    with pytest.raises(RemoteError, match=text) as raised, _explained("s3", "b/m"):
        raise OSError("HeadObject: Bad Request") from cause
    assert type(raised.value) is kind


def test_renewed_credentials_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next look after the old ones were denied, without a restart."""
    pytest.importorskip("s3fs", reason="needs the extra s3")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with serving() as web:
        monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
        web.check = lambda path, key: Answer(status=403)
        for key in ("OLD", "NEW"):
            file.write_text(
                f"[default]\naws_access_key_id={key}\naws_secret_access_key=x\n"
            )
            source = BucketSource.of("s3", "models/digits")
            with pytest.raises(RemoteError, match="denies access"):
                names(source)
            assert f"Credential={key}/" in web.authorizations[-1]
