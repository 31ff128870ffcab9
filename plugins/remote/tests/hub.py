"""A server that speaks as Hugging Face's hub does, for one repository `me/digits`.

`python -m plugins.remote.tests.hub PORT FOLDER`. What it answers is what the
real library takes (`test_stores.py` has it download from here): a commit of the files
in the folder as they are, lists of them, large ones from another host, who must not
hear the token, with ranges.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_of_the_tests"
LARGE = 1000  # bytes from which on a file is in the store of large ones
_API = re.compile(r"/api/models/me/digits/(revision|tree)/(\w+)(?:\?.*)?")
_RESOLVE = re.compile(r"/me/digits/resolve/(\w+)/(.+)")


class Hub(BaseHTTPRequestHandler):
    """Reads the folder anew for each request."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        if self.path.startswith("/cdn/"):
            self._large(self.path.removeprefix("/cdn/"))
        elif self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif found := _API.fullmatch(self.path):
            self._list(*found.groups())
        elif found := _RESOLVE.fullmatch(self.path):
            self._resolve(*found.groups())
        else:
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _files(self) -> dict[str, bytes]:
        paths = sorted(p for p in self.folder.rglob("*") if p.is_file())
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in paths}

    def _commit(self) -> str:
        return hashlib.sha1(repr(self._files()).encode()).hexdigest()

    def _list(self, kind: str, revision: str) -> None:
        if revision not in ("main", self._commit()):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif kind == "tree":
            self._json([_entry(n, b) for n, b in self._files().items()])
        else:
            found = [_sibling(n, b) for n, b in self._files().items()]
            commit = {"id": "me/digits", "sha": self._commit(), "siblings": found}
            self._json(commit)

    def _resolve(self, revision: str, name: str) -> None:
        body = self._files().get(name)
        if revision not in ("main", self._commit()) or body is None:
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        told = {"X-Repo-Commit": self._commit(), "ETag": f'"{_blob(body)}"'}
        if len(body) < LARGE:
            self._answer(200, body, told)
            return
        digest = hashlib.sha256(body).hexdigest()
        told |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(body))}
        port = self.headers["host"].rpartition(":")[2]
        where = f"http://localhost:{port}/cdn/{digest}"
        self._answer(302, b"", told | {"Location": where})

    def _large(self, digest: str) -> None:
        if self.headers.get("authorization"):
            self._answer(400, b"who asked you who you are?")
            return
        bodies = self._files().values()
        body = next(b for b in bodies if hashlib.sha256(b).hexdigest() == digest)
        asked = re.match(r"bytes=(\d+)-", self.headers.get("range", ""))
        first = int(asked[1]) if asked else 0
        told = {"ETag": f'"{digest}"'}
        if asked:
            told["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
        self._answer(206 if asked else 200, body[first:], told)

    def _json(self, document: Any) -> None:
        told = {"Content-Type": "application/json"}
        self._answer(200, json.dumps(document).encode(), told)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _blob(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def _large_file(body: bytes, key: str) -> dict[str, Any]:
    if len(body) < LARGE:
        return {}
    digest = hashlib.sha256(body).hexdigest()
    return {"lfs": {key: digest, "size": len(body), "pointerSize": 134}}


def _sibling(name: str, body: bytes) -> dict[str, Any]:
    told = {"rfilename": name, "size": len(body), "blobId": _blob(body)}
    return told | _large_file(body, "sha256")


def _entry(name: str, body: bytes) -> dict[str, Any]:
    told = {"type": "file", "path": name, "size": len(body), "oid": _blob(body)}
    return told | _large_file(body, "oid")


def main(port: int, folder: Path) -> None:
    Hub.folder = folder
    ThreadingHTTPServer(("127.0.0.1", port), Hub).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
