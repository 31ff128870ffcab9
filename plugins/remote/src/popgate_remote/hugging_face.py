"""Repositories of models on Hugging Face, or on a server with the same API.

A branch is resolved to its commit first, so that all files belong to one commit.
``HF_TOKEN`` (or the file that ``hf auth login`` writes), ``HF_ENDPOINT`` and
``HF_HUB_OFFLINE`` are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.repository.model_sources import RemoteError
from popgate_remote.errors import SourceAway
from popgate_remote.http_files import HttpFiles
from popgate_remote.listing import MODEL_SUFFIXES, RemoteFile, belongs_to
from popgate_remote.source import Reading

ENDPOINT = "https://huggingface.co"
_PLACE = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[^/@]+))?(?:/(?P<path>.+))?"
)


class HuggingFaceSource:
    """A repository, ``org/name[@revision][/folder or file]``."""

    def __init__(self, place: str) -> None:
        """Raise `RemoteError` for an invalid repository."""
        found = _PLACE.fullmatch(place.rstrip("/"))
        if found is None:
            msg = (
                f"{place!r} is not a repository; expected a URL as in "
                "hf://org/name@main/onnx/model.onnx"
            )
            raise RemoteError(msg)
        self._repository = found["repository"]
        self._revision = found["revision"] or "main"
        self._path = found["path"] or ""
        self._endpoint = (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        token = _token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = HttpFiles(
            "check the name, or set HF_TOKEN and request access to the repository",
            headers,
        )

    def files(self) -> Iterator[RemoteFile]:
        if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "on", "yes", "true"):
            raise SourceAway("HF_HUB_OFFLINE is set, so nothing can be downloaded")
        revision = quote(self._revision, safe="%")
        url = f"{self._endpoint}/api/models/{self._repository}/revision/{revision}"
        found = self._http.document(f"{url}?blobs=true")
        try:
            commit = str(found["sha"])
            siblings = {str(s["rfilename"]): s for s in found["siblings"]}
        except (KeyError, TypeError):
            raise RemoteError(f"{url} did not answer with a list of files") from None
        for name, place in self._wanted(siblings).items():
            yield self._file(name, place, commit, siblings[place])

    def checksums(self, file: RemoteFile) -> tuple[tuple[str, str], ...]:
        return file.checksums

    @contextmanager
    def open(self, file: RemoteFile, start: int) -> Iterator[Reading]:
        with self._http.file(file.place, start) as reading:
            yield reading

    def close(self) -> None:
        self._http.close()

    def _wanted(self, siblings: dict[str, Any]) -> dict[str, str]:
        """Return paths in the repository by their names in the model."""
        if self._path in siblings:
            folder, _, name = self._path.rpartition("/")
            if not name.endswith(MODEL_SUFFIXES):
                raise RemoteError(f"{name} is neither an .onnx nor a .popef file")
            inside = f"{folder}/" if folder else ""
            beside = (p for p in siblings if p.rpartition("/")[0] == folder)
            return {
                place.removeprefix(inside): place
                for place in beside
                if belongs_to(place.removeprefix(inside), name)
            }
        inside = f"{self._path}/" if self._path else ""
        found = {p.removeprefix(inside): p for p in siblings if p.startswith(inside)}
        if not found:
            raise RemoteError(f"{self._repository} has no file or folder {self._path}")
        return found

    def _file(self, name: str, place: str, commit: str, told: Any) -> RemoteFile:
        url = f"{self._endpoint}/{self._repository}/resolve/{commit}/{quote(place)}"
        try:
            lfs = told.get("lfs") or {}
            size, blob = int(lfs.get("size", told.get("size"))), str(told["blobId"])
            sums = (("sha256", str(lfs["sha256"])),) if lfs else (("git", blob),)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RemoteError(
                f"the repository states no size or no digest of {place}"
            ) from None
        return RemoteFile(name, url, size, blob, sums)


def _token() -> str:
    """Return the token that Hugging Face's libraries would send."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    path = os.environ.get("HF_TOKEN_PATH") or str(Path(home) / "token")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
