"""Kinds of models without the plugins that run them.

Covers: app/serving/ensemble_kind.py, app/serving/stateful.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import EntryPoints

import pytest

from app import plugins
from app.repository.load_errors import LoadError, explained
from app.serving.ensemble_kind import ensemble_kind
from app.serving.stateful import stateful_models


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
@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (ensemble_kind, "no plugin that runs ensembles is installed"),
        (
            partial(stateful_models, "[sequence]"),
            r"\[sequence\] needs a plugin that runs stateful models, and none is",
        ),
    ],
)
def test_without_a_plugin_the_load_says_what_is_missing(
    ask: Callable[[], object], why: str
) -> None:
    with pytest.raises(LoadError, match=why), explained("one/1"):
        ask()
