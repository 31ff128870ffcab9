"""Versions of registered models of an MLflow tracking server, by its REST API.

``MLFLOW_TRACKING_URI`` is its address. ``MLFLOW_TRACKING_TOKEN``, or ``…_USERNAME`` and
``…_PASSWORD``, are the credentials. Artifacts come from the server if it proxies them,
else from their buckets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from app.repository.model_sources import RemoteError
from popgate_remote.errors import NotThere
from popgate_remote.http_files import HttpFiles
from popgate_remote.listing import Folders, RemoteFile
from popgate_remote.source import Reading, Source

_PLACE = re.compile(r"(?P<name>[^/@]+)(?:/(?P<version>\d{1,18})|@(?P<alias>[^/@]+))")


class MlflowSource:
    """A version of a model, ``name/version`` or ``name@alias``.

    `bucket` opens the source of another URL, if the artifacts are in a bucket.
    """

    def __init__(self, place: str, bucket: Callable[[str], Source]) -> None:
        """Raise `RemoteError` for an invalid version, and without a server."""
        found = _PLACE.fullmatch(place.strip("/"))
        if found is None:
            msg = (
                f"{place!r} is not a version; expected a URL as in "
                "mlflow:/digits/3 or mlflow:/digits@best"
            )
            raise RemoteError(msg)
        self._name = unquote(found["name"])
        self._version, self._alias = found["version"], found["alias"]
        self._base = os.environ.get("MLFLOW_TRACKING_URI", "").rstrip("/")
        if not self._base.lower().startswith(("http://", "https://")):
            msg = "set MLFLOW_TRACKING_URI to the URL of the tracking server (https://...)"
            raise RemoteError(msg)
        self._bucket = bucket
        self._inner: Source | None = None
        token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
        user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
        password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
        self._http = HttpFiles(
            "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD",
            {"authorization": f"Bearer {token}"} if token else {},
            (user, password) if user and not token else None,
        )

    def files(self) -> Iterator[RemoteFile]:
        version = self._version or self._of_alias()
        one = {"name": self._name, "version": version}
        told = self._ask("model-versions/get", **one)
        uri = self._ask("model-versions/get-download-uri", **one)
        where = self._absolute(str(uri.get("artifact_uri", "")))
        scheme, _, path = where.partition(":")
        if scheme != "mlflow-artifacts":
            if scheme not in ("s3", "gs"):
                msg = (
                    f"its files are at {where!r}; PopGate supports "
                    "mlflow-artifacts:, s3: and gs:"
                )
                raise RemoteError(msg)
            self._close_inner()
            self._inner = self._bucket(where)
            yield from self._inner.files()
            return
        # A version does not change, unless it is deleted and created again.
        created = _value(told, "model_version", "creation_timestamp")
        tag = f"{version} of {created} at {where}"
        root = urlsplit(path).path.strip("/")
        yield from self._below(root, "", tag, 1, Folders())

    def checksums(self, file: RemoteFile) -> tuple[tuple[str, str], ...]:
        return file.checksums if self._inner is None else self._inner.checksums(file)

    @contextmanager
    def open(self, file: RemoteFile, start: int) -> Iterator[Reading]:
        opened = (
            self._http.file(file.place, start)
            if self._inner is None
            else self._inner.open(file, start)
        )
        with opened as reading:
            yield reading

    def close(self) -> None:
        self._close_inner()
        self._http.close()

    def _close_inner(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _of_alias(self) -> str:
        one = {"name": self._name, "alias": self._alias}
        told = self._ask("registered-models/alias", **one)
        version = _value(told, "model_version", "version")
        if not str(version).isdecimal():
            raise RemoteError(f"the alias {self._name}@{self._alias} has no version")
        return str(version)

    def _absolute(self, where: str) -> str:
        """Return the place of the artifacts of a run, for a version registered by its
        place in a run (``runs:/ID/model``).
        """
        scheme, _, path = where.partition(":")
        if scheme != "runs":
            return where
        run, _, inside = path.lstrip("/").partition("/")
        told = self._ask("runs/get", run_id=run)
        root = _value(told, "run", "info", "artifact_uri")
        if not root:
            raise RemoteError(f"MLflow does not state where the files of run {run} are")
        return f"{str(root).rstrip('/')}/{inside}"

    def _ask(self, what: str, **asked: str) -> Any:
        url = f"{self._base}/api/2.0/mlflow/{what}?{urlencode(asked)}"
        try:
            found = self._http.document(url)
        except NotThere as e:  # 400 for an unknown alias, 404 for other names
            values = ", ".join(f"{k} {v!r}" for k, v in asked.items())
            msg = f"MLflow has no {values}: {e}; check the URL of the model"
            raise RemoteError(msg) from None
        if not isinstance(found, dict):
            raise RemoteError(
                f"{self._base} answered {what} with something other than a JSON object"
            )
        return found

    def _below(
        self, root: str, folder: str, tag: str, depth: int, folders: Folders
    ) -> Iterator[RemoteFile]:
        folders.enter(depth)
        base = f"{self._base}/api/2.0/mlflow-artifacts/artifacts"
        query = urlencode({"path": f"{root}/{folder}".rstrip("/")})
        found = self._http.document(f"{base}?{query}")
        try:
            for entry in found.get("files", ()):
                name = f"{folder}/{entry['path']}".lstrip("/")
                if entry.get("is_dir"):
                    yield from self._below(root, name, tag, depth + 1, folders)
                    continue
                place = f"{base}/{quote(f'{root}/{name}')}"
                yield RemoteFile(name, place, int(entry["file_size"]), tag)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RemoteError(f"{base} did not answer with a list of files") from None


def _value(told: Any, *keys: str) -> Any:
    """Return a value inside an answer; None if it has none."""
    for key in keys:
        told = told.get(key) if isinstance(told, dict) else None
    return told
