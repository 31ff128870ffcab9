"""The model source that PopGate's entry point names."""

from __future__ import annotations

from pathlib import Path

from app.repository.model_sources import FetchOptions
from popgate_remote.cached_models import CachedModels
from popgate_remote.downloads import Downloads
from popgate_remote.urls import SCHEMES, ModelUrl


class RemoteSource:
    """Buckets, hubs, registries and web servers (`app.repository.model_sources`)."""

    schemes = tuple(SCHEMES)

    def url(self, text: str) -> ModelUrl:
        """Parse a URL. Raises `engine.InvalidConfig`."""
        return ModelUrl.of(text)

    def models(self, folder: Path, options: FetchOptions) -> CachedModels:
        """Return the models that are cached in `folder`."""
        return CachedModels(folder, options)

    def cache(self, folder: Path) -> Downloads:
        """Return the cache in `folder`."""
        return Downloads(folder)


SOURCE = RemoteSource()
