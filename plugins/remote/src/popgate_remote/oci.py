"""Artifacts in OCI registries, by the distribution API: a file for each layer.

`oras push registry/models/digits:1 1/model.onnx` makes such an artifact. A layer's name
is its annotation ``org.opencontainers.image.title``. Layers without one belong to
container images, which are not models.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import urllib.parse
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.repository.model_sources import RemoteError
from popgate_remote.http_files import HttpFiles, is_loopback, whole
from popgate_remote.listing import RemoteFile
from popgate_remote.source import Reading

TITLE = "org.opencontainers.image.title"
UNPACK = "io.deis.oras.content.unpack"
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
_REFERENCE = re.compile(
    r"(?P<host>[^/@]+)/(?P<repository>[a-z0-9][a-z0-9._/-]*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_HELPER = re.compile(r"[A-Za-z0-9_-]+")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
HELPER_SECONDS = 30.0
MAX_TOKEN = 1 << 17  # most bytes of an answer with a token


class OciSource:
    """One artifact, ``registry/repository:tag`` or ``@sha256:digest``."""

    def __init__(self, reference: str) -> None:
        """Raise `RemoteError` for an invalid reference."""
        found = _REFERENCE.fullmatch(reference)
        if found is None:
            msg = (
                f"{reference!r} is not an artifact; expected a URL as in "
                "oci://ghcr.io/me/digits:1"
            )
            raise RemoteError(msg)
        host = {"docker.io": "registry-1.docker.io"}.get(found["host"], found["host"])
        scheme = (
            "http"
            if is_loopback(urllib.parse.urlsplit(f"//{host}").hostname)
            else "https"
        )
        self._base = f"{scheme}://{host}/v2/{found['repository']}"
        self._digest = found["digest"] or ""
        self._reference = self._digest or found["tag"] or "latest"
        scope = f"repository:{found['repository']}:pull"
        auth = RegistryAuth(*credentials_of(found["host"]), scope)
        self._http = HttpFiles(f"run docker login {found['host']}", auth=auth)

    def files(self) -> Iterator[RemoteFile]:
        manifest = self._manifest()
        layers = manifest.get("layers")
        if not isinstance(layers, list):
            kind = manifest.get("mediaType", "")
            msg = f"its manifest lists no files, but is {kind or 'of another kind'}"
            raise RemoteError(msg)
        for layer in layers:
            yield self._file(layer)

    def checksums(self, file: RemoteFile) -> tuple[tuple[str, str], ...]:
        return file.checksums

    @contextmanager
    def open(self, file: RemoteFile, start: int) -> Iterator[Reading]:
        with self._http.file(file.place, start) as reading:
            yield reading

    def close(self) -> None:
        self._http.close()

    def _manifest(self) -> dict[str, Any]:
        url = f"{self._base}/manifests/{self._reference}"
        body, headers = self._http.body(url, {"accept": ", ".join(_MANIFESTS)})
        stated = self._digest or headers.get("docker-content-digest", "")
        came = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if stated.startswith("sha256:") and stated != came:
            raise RemoteError(f"its manifest has the digest {came}, expected {stated}")
        try:
            manifest = json.loads(body)
        except (ValueError, RecursionError):
            manifest = None
        if not isinstance(manifest, dict):
            raise RemoteError(f"{url} answered with an invalid manifest")
        return manifest

    def _file(self, layer: Any) -> RemoteFile:
        annotations = isinstance(layer, dict) and (layer.get("annotations") or {})
        if not isinstance(annotations, dict):
            raise RemoteError("its manifest has an invalid layer")
        name, size = annotations.get(TITLE), layer.get("size")
        digest = _DIGEST.fullmatch(str(layer.get("digest")))
        if not isinstance(name, str):
            msg = (
                f"a layer ({layer.get('mediaType')}) is not a file; push the "
                "files of the model, as in: oras push registry/digits:1 "
                "1/model.onnx"
            )
            raise RemoteError(msg)
        if annotations.get(UNPACK) == "true":
            raise RemoteError(f"{name} is a packed folder; push its files one by one")
        if digest is None or not isinstance(size, int) or size < 0:
            raise RemoteError(f"{name} has no SHA-256 or no size")
        place = f"{self._base}/blobs/sha256:{digest[1]}"
        return RemoteFile(name, place, size, digest[1], (("sha256", digest[1]),))


class RegistryAuth(httpx.Auth):
    """Authentication at a registry: by user and password, or with a token from the
    server that the registry names. Tokens are reused.
    """

    def __init__(self, user: str, password: str, scope: str) -> None:
        self._user = user
        self._password = password
        self._scope = scope
        self._header = ""

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        if self._header:
            request.headers["authorization"] = self._header
        answer = yield request
        # Servers behind a redirect receive no credentials.
        if answer.status_code != 401 or answer.url.netloc != request.url.netloc:
            return
        challenge = answer.headers.get("www-authenticate", "")
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self._user:
            self._header = self._basic
        elif kind.lower() == "bearer":
            asked = self._token_request(dict(_PARAMETER.findall(rest)))
            if asked is None:
                return
            asked.extensions = request.extensions  # the timeouts
            given = yield asked
            given.stream = httpx.ByteStream(whole(given, MAX_TOKEN))
            given.read()
            token = _token_of(given)
            if not token:
                return
            self._header = f"Bearer {token}"
        else:
            return
        request.headers["authorization"] = self._header
        yield request

    @property
    def _basic(self) -> str:
        pair = f"{self._user}:{self._password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"

    def _token_request(self, told: dict[str, str]) -> httpx.Request | None:
        """Return the request for a token; None if a password would travel
        without TLS.
        """
        try:
            realm = urllib.parse.urlsplit(told.get("realm", ""))
        except ValueError:
            return None
        if realm.scheme != "https" and not (
            realm.scheme == "http" and is_loopback(realm.hostname)
        ):
            return None
        asked = {"scope": told.get("scope") or self._scope}
        if told.get("service"):
            asked["service"] = told["service"]
        headers = {"authorization": self._basic} if self._user else {}
        return httpx.Request("GET", told["realm"], params=asked, headers=headers)


def _token_of(answer: httpx.Response) -> str:
    try:
        found = answer.json()
        token = found.get("token") or found.get("access_token")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return token if answer.status_code == 200 and isinstance(token, str) else ""


def credentials_of(host: str) -> tuple[str, str]:
    """Return user and password as ``docker login`` has stored them; empty if there are
    none.

    They are in ``$DOCKER_CONFIG/config.json``, or come from the helper that it names.
    Raises `RemoteError`.
    """
    folder = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_bytes())
        names = [host, f"https://{host}"]
        if host == "docker.io":
            names.append("https://index.docker.io/v1/")
        helpers, auths = config.get("credHelpers") or {}, config.get("auths") or {}
        for name in names:
            if name in helpers:
                return _from_helper(helpers[name], name)
            if name in auths and config.get("credsStore"):
                return _from_helper(config["credsStore"], name)
            if text := auths.get(name, {}).get("auth"):
                user, _, password = base64.b64decode(text).decode().partition(":")
                return user, password
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError, TypeError) as e:
        raise RemoteError(f"{path} cannot be read: {e}") from e
    return "", ""


def _from_helper(helper: str, server: str) -> tuple[str, str]:
    if not _HELPER.fullmatch(helper):
        raise RemoteError(f"{helper!r} is not the name of a credential helper")
    try:
        ended = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=server,
            capture_output=True,
            text=True,
            timeout=HELPER_SECONDS,
            check=True,
        )
        found = json.loads(ended.stdout)
        return str(found["Username"]), str(found["Secret"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as e:
        name = f"docker-credential-{helper}"
        raise RemoteError(f"{name} returned no credentials for {server}: {e}") from e
