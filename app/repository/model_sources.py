"""Sources of remote models: plugins that download the models of some URLs.

The plugin of the entry point group `popgate.model_sources` that has the URL's scheme
parses the URL, downloads into a cache, and reports the cache's content. The server
serves only from the cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from app.plugins import MODEL_SOURCES, plugins
from engine import InvalidConfig

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
#: A scheme and a host, without a user, a password or a query.
_SHOWN = re.compile(r"([^:]+):/+(?:[^/@]*@)?([^/?#]*)")


class RemoteError(Exception):
    """A remote model cannot be downloaded. The message is for the operator."""


class FetchStopped(RemoteError):
    """The server shuts down."""


class RemoteUrl(Protocol):
    """The URL of a model; `str` shows it without secrets. Equal URLs are equal."""

    @property
    def scheme(self) -> str:
        """Return the scheme in lower case."""

    @property
    def name(self) -> str:
        """Return the name of the model, unless another is given."""


class ListedFile(Protocol):
    """One remote file; `size` is in bytes, None if the source does not say it."""

    @property
    def name(self) -> str:
        """Return the path within the model."""

    @property
    def size(self) -> int | None:
        """Return the size in bytes."""

    @property
    def checksums(self) -> Sequence[tuple[str, str]]:
        """Return pairs of an algorithm and hexadecimal digits."""


class Listed(Protocol):
    """The files of a remote model, and the names of those that are not downloaded."""

    @property
    def files(self) -> Sequence[ListedFile]:
        """Return the files that are downloaded, by name."""

    @property
    def skipped(self) -> Sequence[str]:
        """Return the names of the others."""

    @property
    def digest(self) -> str:
        """Return a value that differs when a file changes."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options of fetching models. `limit` is the largest size of a model in bytes (0:
    no limit). `progress_seconds` is the interval of progress lines.
    """

    limit: int = 0
    allow_python: bool = False
    progress_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Looks:
    """The results of polling one URL.

    They are the number of failures, and the time of the last success in seconds since
    1970 (0: never).
    """

    failures: int = 0
    succeeded_at: float = 0.0


class RemoteModels(Protocol):
    """Downloads the models of one source into its cache. For all threads."""

    def folder_of(self, url: Any) -> Path | None:
        """Return the folder of the whole model that is served; None if there is none"""

    def problem_of(self, url: Any) -> str:
        """Return why the last fetch failed, or nothing."""

    def news_of(self, url: Any) -> str:
        """Return why the newest model is not served; empty if it is.

        The reason is a running download or the last failure.
        """

    def looks_at(self, url: Any) -> Looks:
        """Return the results of polling a URL."""

    def fetch(self, label: str, url: Any) -> bool:
        """Download the present files; return whether they differ from the cached ones.

        Blocks. Raises `RemoteError` if that fails and the cache has no model, and
        `FetchStopped` after `stop`.
        """

    def confirm(self, url: Any, files: Collection[Path]) -> None:
        """Record that these files serve: the cache keeps them until others serve."""

    def step_back(self, url: Any) -> bool:
        """Return to the files that served last, if the cache has them.

        Return whether the cache has them.
        """

    def drop_unused(self, url: Any, used: Collection[Path]) -> None:
        """Remove older files of the URL, except for those in use."""

    def preview(self, url: Any) -> tuple[Listed, Collection[str]]:
        """Return the present files, and the names of those that the cache has.

        Raises `RemoteError`; downloads nothing.
        """

    def names_a_place(self, reason: str) -> bool:
        """Return whether a reason contains the place of a model, or text from there."""

    def stop(self) -> None:
        """End downloads; the cache keeps the received bytes."""


Kind = Literal["compiled", "downloaded", "left over"]

#: A younger file without a model (age in seconds) may still be being written.
_BEING_WRITTEN: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Cached:
    """One entry of the cache: its name for people, its bytes, and when it was last used
    (`time.time()`).
    """

    kind: Kind
    name: str
    size: int
    used: float
    path: Path
    in_use: bool = False


def left_over(path: Path, found: os.stat_result, age: float) -> Cached:
    """Return an entry for a file without a model; `age` is in seconds."""
    is_new = age < _BEING_WRITTEN
    return Cached("left over", path.name, found.st_size, found.st_mtime, path, is_new)


class DownloadCache(Protocol):
    """The cached downloads of one source, for `popgate cache`."""

    def listed(self) -> Iterator[Cached]:
        """Yield all cached downloads."""

    def remove(self, cached: Cached) -> bool:
        """Remove a download unless a server uses it; return whether it is gone."""

    def sweep(self) -> None:
        """Remove the remains of ended servers."""


class ModelSource(Protocol):
    """An object of the entry point group `popgate.model_sources`."""

    @property
    def schemes(self) -> Collection[str]:
        """Return the schemes of the URLs that it knows, in lower case."""

    def url(self, text: str) -> RemoteUrl:
        """Parse a URL of one of the schemes. Raises `engine.InvalidConfig`."""

    def models(self, folder: Path, options: FetchOptions) -> RemoteModels:
        """Return the models that are cached in `folder`, which is made if needed."""

    def cache(self, folder: Path) -> DownloadCache:
        """Return the cache in `folder`, for managing its disk space."""


def is_url(text: str) -> bool:
    """Return whether a string is meant as a URL, not as a path."""
    return _URL.match(text) is not None


def parse_url(text: str) -> RemoteUrl:
    """Parse a URL with the source that knows its scheme.

    Raises `engine.InvalidConfig` if none does, or if the URL is invalid.
    """
    scheme = text.partition(":")[0].lower()
    source = _sources().get(scheme)
    if source is not None:
        return source.url(text)
    known = ", ".join(f"{name}:" for name in sorted(_sources()))
    shown = _SHOWN.match(text)
    place = f"{shown[1]}://{shown[2]}: " if shown else ""
    what = (
        f"supported are {known}"
        if known
        else f"no plugin of the group {MODEL_SOURCES} is installed; PopGate's wheel "
        "has one (pip install --force-reinstall --no-deps popgate-*.whl)"
    )
    raise InvalidConfig(f"{place}{scheme}: is not supported; {what}")


class RemoteCaches:
    """The models of all sources below one folder. For all threads.

    A source is opened when the first of its URLs is used.
    """

    def __init__(self, folder: Path, options: FetchOptions | None = None) -> None:
        self.options = options or FetchOptions()
        self._folder = folder
        self._models: dict[int, RemoteModels] = {}

    def of(self, url: RemoteUrl) -> RemoteModels:
        """Return the models of the source that knows a URL."""
        source = _sources()[url.scheme]
        found = self._models.get(id(source))
        if found is None:
            made = source.models(self._folder, self.options)
            found = self._models.setdefault(id(source), made)
        return found

    def names_a_place(self, reason: str) -> bool:
        """Return whether a reason contains the place of a model, or text from there."""
        if "://" in reason:
            return True
        return any(each.names_a_place(reason) for each in [*self._models.values()])

    def stop(self) -> None:
        """End all downloads."""
        for each in [*self._models.values()]:
            each.stop()

    def __repr__(self) -> str:
        return f"<RemoteCaches {self._folder}>"


def _sources() -> Mapping[str, ModelSource]:
    """Return the sources by scheme."""
    sources: Collection[ModelSource] = plugins(MODEL_SOURCES).values()
    return {scheme: source for source in sources for scheme in source.schemes}
