"""The model source that PopGate's entry point names."""

from __future__ import annotations

from pathlib import Path

from app.repository.model_sources import FetchOptions
from popgate_remote.downloads import Downloads
from popgate_remote.remote_models import RemoteModels
from popgate_remote.urls import SCHEMES, RemoteUrl


class RemoteSource:
    """Buckets, hubs, registries and web servers (`app.repository.model_sources`)."""

    schemes = tuple(SCHEMES)

    def url(self, text: str) -> RemoteUrl:
        """Parse a URL. Raises `engine.InvalidConfig`."""
        return RemoteUrl.of(text)

    def models(self, folder: Path, options: FetchOptions) -> RemoteModels:
        """Return the models that are cached in `folder`."""
        return RemoteModels(folder, options)

    def cache(self, folder: Path) -> Downloads:
        """Return the cache in `folder`."""
        return Downloads(folder)


SOURCE = RemoteSource()
