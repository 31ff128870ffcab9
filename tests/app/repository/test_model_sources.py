"""Model sources: which plugin a URL goes to, and the reason if none knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from app.repository import model_sources
from app.repository.model_sources import Cached, RemoteCaches, is_url, parse_url
from app.repository.places import ModelPlaces
from engine import InvalidConfig

Install: TypeAlias = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Shelf:
    scheme: str
    name: str


@dataclass
class ShelfModels:
    """The folder of each model is that of its name below the cache."""

    folder: Path
    stopped: bool = False

    def folder_of(self, url: Shelf) -> Path | None:
        return self.folder / url.name

    def names_a_place(self, reason: str) -> bool:
        return reason == "the shelf is empty"

    def stop(self) -> None:
        self.stopped = True


@dataclass
class ShelfCache:
    kept: list[Cached] = field(default_factory=list)


class Shelves:
    """A source of two schemes."""

    schemes = "shelf", "rack"

    def __init__(self) -> None:
        self.made: list[ShelfModels] = []

    def url(self, text: str) -> Shelf:
        scheme, _, name = text.partition("://")
        return Shelf(scheme, name)

    def models(self, folder: Path, options: object) -> ShelfModels:
        self.made.append(ShelfModels(folder))
        return self.made[-1]

    def cache(self, folder: Path) -> ShelfCache:
        return ShelfCache()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make these the installed sources, by the name of their entry points."""

    def install(sources: Mapping[str, Any]) -> None:
        monkeypatch.setattr(model_sources, "plugins", lambda group: sources)

    return install


def test_what_is_a_url() -> None:
    assert is_url("s3://bucket/model")
    assert is_url("mlflow:/digits/3")
    assert not is_url("models/digits")
    assert not is_url("C:/models")


def test_without_a_source_the_reason_says_what_to_install(install: Install) -> None:
    install({})
    why = "hf://me: hf: is not supported; no plugin of the group"
    with pytest.raises(InvalidConfig, match=why) as raised:
        parse_url("hf://user:secret@me/digits?token=secret")
    assert "pip install --force-reinstall --no-deps popgate-*.whl" in str(raised.value)
    assert "popgate.model_sources" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_source_has_the_urls_of_its_schemes(install: Install, tmp_path: Path) -> None:
    shelves = Shelves()
    install({"shelves": shelves})
    with pytest.raises(
        InvalidConfig, match="hf: is not supported; supported are rack:, "
    ):
        parse_url("hf://me/digits")
    caches = RemoteCaches(tmp_path)
    places = ModelPlaces.of(None, ["shelf://a", "c=rack://b"], caches)
    assert places.named == {"a": Shelf("shelf", "a"), "c": Shelf("rack", "b")}
    assert shelves.made == []  # nothing was asked of it yet
    models = caches.of(parse_url("shelf://a"))
    assert caches.of(parse_url("rack://b")) is models
    assert models.folder_of(places.named["a"]) == tmp_path / "a"
    assert places.public("the shelf is empty") != "the shelf is empty"
    assert places.public("another reason") == "another reason"
    caches.stop()
    assert shelves.made[0].stopped
