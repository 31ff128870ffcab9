"""Ensembles without the plugin that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoints

import pytest

from app import plugins
from app.repository.loaded_model import LoadError
from app.repository.loader import explained
from app.serving.ensemble_kind import ensemble_kind


@pytest.fixture
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches = plugins._points, plugins.plugins
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setattr(plugins, "_all_points", lambda: EntryPoints(()))
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("no_plugins")
def test_without_a_plugin_the_load_says_what_is_missing() -> None:
    why = "no plugin that runs ensembles is installed"
    with pytest.raises(LoadError, match=why), explained("chain/1"):
        ensemble_kind()
