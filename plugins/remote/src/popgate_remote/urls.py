"""URLs of models, and the source that each kind of them has."""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass
from importlib.util import find_spec

from app.repository.model_sources import RemoteError
from engine import InvalidConfig
from popgate_remote.http_files import WebSource, is_loopback
from popgate_remote.listing import MODEL_SUFFIXES
from popgate_remote.source import Source

#: A user and a password before a host. A port does not match; a secret may contain `/`.
_CREDENTIALS = re.compile(r"//[^/@]*:(?!\d+/)[^@]*@")
_SHA256 = re.compile(r"sha256=([0-9a-f]{64})")
#: Parts of a connection string of Azure that may be renewed.
_SECRETS = re.compile(r"(AccountKey|SharedAccessSignature)=[^;]*")


_CREDENTIALS_GO = {
    "http": "into ~/.netrc",
    "https": "into ~/.netrc",
    "oci": "to docker login",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """A kind of URL.

    `module` is its required library, installed by the extra `extra`. `servers` are the
    variables that decide which server has the models.
    """

    example: str
    module: str = ""
    extra: str = ""
    servers: tuple[str, ...] = ()


SCHEMES = {
    "s3": Scheme(
        "s3://bucket/models/digits", "s3fs", "s3",
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL",
         "AWS_PROFILE"),
    ),
    "gs": Scheme(
        "gs://bucket/models/digits", "gcsfs", "gcs", ("STORAGE_EMULATOR_HOST",)
    ),
    "az": Scheme(
        "az://container/models/digits", "adlfs", "azure",
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"),
    ),
    "hf": Scheme("hf://org/name@main/onnx/model.onnx", servers=("HF_ENDPOINT",)),
    "oci": Scheme("oci://ghcr.io/me/digits:1"),
    "mlflow": Scheme("mlflow:/digits/3", servers=("MLFLOW_TRACKING_URI",)),
    "https": Scheme("https://example.com/digits.onnx"),
    "http": Scheme("http://localhost:8080/digits.onnx"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelUrl:
    """A URL of a model. `sha256` is the required digest of its only file."""

    text: str
    scheme: str
    path: str
    sha256: str = ""

    @classmethod
    def of(cls, text: str) -> ModelUrl:
        """Raise `engine.InvalidConfig` for an unknown kind, or one whose library is not
        installed.
        """
        scheme = text.partition(":")[0].lower()
        known = SCHEMES.get(scheme)
        if known is not None:
            _check_credentials(scheme, text)
        if known is None:
            all_of_them = ", ".join(f"{name}:" for name in sorted(SCHEMES))
            msg = (
                f"{_bare(text)}: {scheme}: is not supported; supported are "
                f"{all_of_them}"
            )
            raise InvalidConfig(msg)
        if known.module and find_spec(known.module) is None:
            msg = (
                f"{scheme}:// needs {known.module}, which is not installed: "
                f"pip install 'popgate[{known.extra}]'"
            )
            raise InvalidConfig(msg)
        plain, _, fragment = text.partition("#")
        path = plain.partition(":")[2].removeprefix("//")
        if not path.strip("/"):
            raise InvalidConfig(
                f"{_bare(text)} names no model; expected a URL as in {known.example}"
            )
        if fragment and scheme not in ("http", "https"):
            raise InvalidConfig(
                f"{_bare(text)}: only https:// and http:// may have a # (#sha256=...)"
            )
        found = _SHA256.fullmatch(fragment)
        if fragment and found is None:
            msg = f"{_bare(text)}: expected sha256= and 64 hexadecimal digits after #"
            raise InvalidConfig(msg)
        try:
            host = urllib.parse.urlsplit(plain).hostname
        except ValueError as e:
            raise InvalidConfig(f"{_bare(text)}: its host is not valid: {e}") from None
        if scheme == "http" and found is None and not is_loopback(host):
            msg = (
                f"{_bare(text)} has no TLS, so any host on the way could "
                "change the file; use https://, or append its checksum "
                "(#sha256=...)"
            )
            raise InvalidConfig(msg)
        return cls(plain, scheme, path, found[1] if found else "")

    @property
    def name(self) -> str:
        """Return the default name of a model at this URL."""
        parts = _bare(self.path).strip("/").split("/")
        last = parts[0] if self.scheme == "mlflow" else parts[-1]
        if self.scheme in ("hf", "oci", "mlflow"):
            last = re.split("[@:]", last)[0]
        for suffix in MODEL_SUFFIXES:
            last = last.removesuffix(suffix)
        return urllib.parse.unquote(last)

    @property
    def key(self) -> str:
        """Return a key that equal URLs of the same server share."""
        key = f"{self.text}#{self.sha256}" if self.sha256 else self.text
        names = SCHEMES[self.scheme].servers if self.scheme in SCHEMES else ()
        told = [_SECRETS.sub("", os.environ.get(name, "")) for name in names]
        return f"{key}?{' '.join(told)}" if any(told) else key

    def open(self) -> Source:
        """Open the source. Raises `RemoteError`."""
        if self.scheme in ("http", "https"):
            return WebSource(self.text, self.sha256)
        if self.scheme == "hf":
            from popgate_remote.hugging_face import HuggingFaceSource

            return HuggingFaceSource(self.path)
        if self.scheme == "oci":
            from popgate_remote.oci import OciSource

            return OciSource(self.path)
        if self.scheme == "mlflow":
            from popgate_remote.mlflow import MlflowSource

            return MlflowSource(self.path, _open_artifacts)
        from popgate_remote.buckets import BucketSource

        return BucketSource.of(self.scheme, self.path)

    def __str__(self) -> str:
        return _bare(self.text)


def _open_artifacts(text: str) -> Source:
    """Open the source that MLflow names for a version's files. Raises `RemoteError`."""
    try:
        return ModelUrl.of(text).open()
    except InvalidConfig as e:
        raise RemoteError(str(e)) from None


def _bare(text: str) -> str:
    """Return the URL without secrets: signatures in queries, passwords before @."""
    return _CREDENTIALS.sub("//", re.split(r"[?#]", text, maxsplit=1)[0])


def _check_credentials(scheme: str, text: str) -> None:
    """Raise `InvalidConfig` if a URL holds a user or a password: a URL is logged."""
    plain = re.split(r"[?#]", text, maxsplit=1)[0]
    host = plain.partition("//")[2].partition("/")[0]
    # In other schemes an @ there means something else, as in hf://name@main.
    is_user = "@" in host and scheme in ("http", "https", "oci", "s3", "gs")
    if not is_user and _CREDENTIALS.search(plain) is None:
        return
    place = plain.rpartition("@")[2].partition("/")[0]
    goes = _CREDENTIALS_GO.get(scheme, "into the server's environment")
    raise InvalidConfig(f"{scheme}://{place}: user and password go {goes}")
