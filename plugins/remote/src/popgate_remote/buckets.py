"""Buckets of objects, through the file systems of fsspec: S3, GCS, Azure."""

from __future__ import annotations

import base64
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from app.background import DaemonPool
from app.repository.model_sources import RemoteError
from popgate_remote.errors import SourceAway, SourceChanged
from popgate_remote.listing import (
    MAX_FILES,
    MODEL_SUFFIXES,
    Folders,
    RemoteFile,
    belongs_to,
)
from popgate_remote.source import Reading

BLOCK = 8 << 20  # bytes of one request
# blocks in flight; with a single one, each answer's start would cause a pause
AHEAD = 4
#: Timeouts in seconds for one request, and for one block. Without an answer, the
#: libraries retry for minutes, which would delay the start and other models.
QUESTION_SECONDS = 45.0  # Google's library stops after 32 s
BLOCK_SECONDS = 120.0

Checksums: TypeAlias = tuple[tuple[str, str], ...]
#: Names that file systems give a value which changes with the content, the best first.
_TAGS = ("generation", "ETag", "etag", "md5Hash", "mtime", "LastModified", "created")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
    "FSSPEC_S3_ANON=1",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or FSSPEC_GS_TOKEN=anon",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or "
    "AZURE_STORAGE_CONNECTION_STRING",
}


class BucketSource:
    """The objects below a prefix, or one object with its external data.

    `filesystem` is a file system of fsspec, and `path` a path in it; `scheme` is for
    messages.
    """

    def __init__(self, filesystem: Any, path: str, scheme: str = "") -> None:
        self._fs = filesystem
        self._path = path.rstrip("/")
        self._scheme = scheme

    @classmethod
    def of(cls, scheme: str, path: str) -> BucketSource:
        """Return the source of a URL, whose library must be installed."""
        with _explained(scheme, path):
            return cls(_file_system(scheme), path, scheme)

    def files(self) -> Iterator[RemoteFile]:
        with self._explained():
            self._fs.invalidate_cache()
            found = self._fs.info(self._path, timeout=QUESTION_SECONDS)
        if found["type"] == "directory":
            yield from self._below(self._path, 1, Folders())
            return
        folder, _, name = self._path.rpartition("/")
        if not name.endswith(MODEL_SUFFIXES):
            raise RemoteError(
                f"{self._path} is one file whose name ends neither in .onnx "
                "nor in .popef"
            )
        for info in self._listed(folder):
            beside = info["name"].rstrip("/").rpartition("/")[2]
            if info["type"] == "file" and belongs_to(beside, name):
                yield _file(beside, info)

    def checksums(self, file: RemoteFile) -> Checksums:
        with self._explained():
            read = _CHECKSUMS.get(self._scheme)
            return read(self._fs, file) if read is not None else ()

    @contextmanager
    def open(self, file: RemoteFile, start: int) -> Iterator[Reading]:
        yield start, self._blocks(file, start)

    def close(self) -> None:
        """Do nothing: connections are fsspec's."""

    def _blocks(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        assert file.size is not None
        # the exit of the process does not wait for a block
        pool = DaemonPool(AHEAD, "popgate-block")
        coming: deque[Future[bytes]] = deque()
        try:
            for begin in range(start, file.size, BLOCK):
                end = min(begin + BLOCK, file.size)
                coming.append(pool.submit(partial(self._block, file, begin, end)))
                if len(coming) == AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for block in coming:
                block.cancel()
            pool.close()

    def _block(self, file: RemoteFile, begin: int, end: int) -> bytes:
        with self._explained():
            block: bytes = self._fs.cat_file(
                file.place, start=begin, end=end, timeout=BLOCK_SECONDS
            )
        if len(block) != end - begin:
            raise SourceChanged(f"{file.name} has become shorter")
        return block

    def _below(self, folder: str, depth: int, folders: Folders) -> Iterator[RemoteFile]:
        folders.enter(depth)
        for info in self._listed(folder):
            place = info["name"].rstrip("/")
            if place == folder:
                continue  # an object that stands for the folder itself
            if info["type"] == "directory":
                yield from self._below(place, depth + 1, folders)
            else:
                yield _file(_below(self._path, place), info)

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        with self._explained():
            found: list[dict[str, Any]] = self._fs.ls(
                folder, detail=True, timeout=QUESTION_SECONDS
            )
        if len(found) > MAX_FILES:
            raise RemoteError(f"{folder} has more than {MAX_FILES} objects")
        return found

    def _explained(self) -> Any:
        return _explained(self._scheme, self._path)


def _below(folder: str, place: str) -> str:
    if not place.startswith(f"{folder}/"):
        raise RemoteError(
            f"the store lists {place!r} below {folder!r}, where it cannot be"
        )
    return place[len(folder) + 1 :]


def _file(name: str, info: dict[str, Any]) -> RemoteFile:
    size = info.get("size")
    if not isinstance(size, int):
        raise RemoteError(f"the store does not state the size of {name}")
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return RemoteFile(name, info["name"], size, tag)


def _file_system(scheme: str) -> Any:
    """Return the file system of a scheme. May raise any exception."""
    import fsspec

    # The library logs a dozen lines of INFO for each request and a traceback for each
    # failure. PopGate logs failures itself.
    for library in ("azure", "aiobotocore", "botocore", "gcsfs"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "az" and not any(
        os.environ.get(f"AZURE_STORAGE_{name}")
        for name in ("ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN", "ANON")
    ):
        options["anon"] = False  # a managed identity, a login
    if scheme == "gs":
        # read HTTPS_PROXY, as other libraries do
        options["session_kwargs"] = {"trust_env": True}
    return fsspec.filesystem(scheme, **options)


def _s3_checksums(fs: Any, file: RemoteFile) -> Checksums:
    bucket, key, _ = fs.split_path(file.place)
    asked = {"Bucket": bucket, "Key": key, "ChecksumMode": "ENABLED"}
    head = fs.call_s3("head_object", **asked, timeout=QUESTION_SECONDS)
    if head.get("ETag") and head["ETag"] != file.tag:
        raise SourceChanged(f"{file.name} has changed")
    sums: list[tuple[str, str]] = []
    sha256 = head.get("ChecksumSHA256", "")
    if sha256 and head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        sums.append(("sha256", base64.b64decode(sha256).hex()))
    etag = file.tag.strip('"')
    # For objects in several parts, or with their own keys, the ETag is not a digest.
    plain = head.get("ServerSideEncryption", "AES256") == "AES256"
    if _is_md5(etag) and plain and "SSECustomerAlgorithm" not in head:
        sums.append(("md5", etag))
    return tuple(sums)


def _gcs_checksums(fs: Any, file: RemoteFile) -> Checksums:
    found = fs.info(file.place, timeout=QUESTION_SECONDS)
    return _md5_of(found.get("md5Hash"))


def _azure_checksums(fs: Any, file: RemoteFile) -> Checksums:
    found = fs.info(file.place, timeout=QUESTION_SECONDS)
    return _md5_of((found.get("content_settings") or {}).get("content_md5"))


def _md5_of(stated: object) -> Checksums:
    """Return an MD5 in base64, or its bytes, as hexadecimal digits; none for other
    values.
    """
    if isinstance(stated, str):
        stated = base64.b64decode(stated)
    if isinstance(stated, bytes | bytearray) and len(stated) == 16:
        return (("md5", bytes(stated).hex()),)
    return ()


def _is_md5(text: str) -> bool:
    return len(text) == 32 and all(c in "0123456789abcdef" for c in text)


_CHECKSUMS: dict[str, Callable[[Any, RemoteFile], Checksums]] = {
    "s3": _s3_checksums,
    "gs": _gcs_checksums,
    "az": _azure_checksums,
}


def _forget(scheme: str) -> None:
    """Let the next look read the credentials again, which may have been renewed."""
    from fsspec.registry import registry

    if scheme in _CREDENTIALS and scheme in registry:
        registry[scheme].clear_instance_cache()


def _s3_code(error: Exception) -> str:
    """Return the error code of S3 in the exception's cause; empty if it has none."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer["Error"].get("Code", "")) if isinstance(answer, dict) else ""


@contextmanager
def _explained(scheme: str, path: str) -> Iterator[None]:
    """Turn errors of the libraries into errors of PopGate."""
    try:
        yield
    except RemoteError:
        raise
    except FileNotFoundError as e:
        raise RemoteError(f"{scheme}://{path} does not exist") from e
    except Exception as e:
        _forget(scheme)
        name = type(e).__name__
        text = " ".join(str(e).split()) or name  # messages of Azure have several lines
        if isinstance(e, TimeoutError):
            text = "no answer in time"
        usual = _CREDENTIALS.get(scheme, "its credentials")
        code = _s3_code(e)
        if code == "400":  # the answer to a HEAD request has no reason
            text += " (S3 answers so if keys have expired)"
        denied = isinstance(e, PermissionError) or "Credential" in name
        denied |= code == "400" or "Token" in code
        status = getattr(e, "status_code", None) or getattr(e, "status", None)
        if denied or status in (401, 403) or name == "ClientAuthenticationError":
            msg = f"{scheme}://{path} denies access: {text}; set {usual}"
            raise RemoteError(msg) from e
        if "InvalidRange" in text or "range is not satisfiable" in text:
            raise SourceChanged(f"{scheme}://{path} has become shorter") from e
        if isinstance(e, ValueError):  # the library's error for a wrong setting
            raise RemoteError(f"{scheme}://{path}: {text}") from e
        raise SourceAway(f"{scheme}://{path}: {text}") from e
