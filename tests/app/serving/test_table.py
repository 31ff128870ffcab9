"""Which path leads to which version.

Covers: app/limits.py, app/serving/absent.py, app/serving/runner.py.
"""

from __future__ import annotations

import asyncio

from app.errors import ModelNotReady, UnknownModel
from app.limits import Limits
from app.serving.table import ModelEntry, ModelTable
from tests.app import fronts
from tests.app.fronts import Doubler


def entries(*versions: str, name: str = "m") -> list[ModelEntry]:
    async def make() -> list[ModelEntry]:
        return [fronts.entry(Doubler(), name, version) for version in versions]

    return asyncio.run(make())


def test_the_highest_version_is_the_default() -> None:
    table = ModelTable()
    first, second, tenth = entries("1", "2", "10")
    table.publish("m", [tenth, first, second])
    assert table.paths["/v1/models/m/infer"] is tenth
    assert table.paths["/v2/models/m/infer"] is tenth
    assert table.paths["/v2/models/m/versions/2/infer"] is second
    assert len(table.paths) == 8
    assert len(table) == 1


def test_publishing_replaces_all_versions() -> None:
    table = ModelTable()
    table.publish("m", entries("1", "2"))
    table.publish("other", entries("1", name="other"))
    (third,) = entries("3")
    table.publish("m", [third])
    assert table.entries("m") == (third,)
    assert sorted(path for path in table.paths if "/m/" in path) == [
        "/v1/models/m/infer",
        "/v1/models/m/versions/3/infer",
        "/v2/models/m/infer",
        "/v2/models/m/versions/3/infer",
    ]
    table.publish("m", ())
    table.publish("m", ())
    assert len(table) == 1
    assert all("/other/" in path for path in table.paths)
    table.publish("other", [])
    assert table.paths == {}


def test_what_is_missing() -> None:
    table = ModelTable(absent=fronts.Late())
    table.publish("m", entries("1"))
    for path, kind in (
        ("/v1/models/x/infer", UnknownModel),
        ("/v2/models/x/versions/1/infer", UnknownModel),
        ("/v2/models/m/versions/2/infer", UnknownModel),
        ("/v1/models/late/infer", ModelNotReady),
        ("/v1/models/late/versions/1/infer", ModelNotReady),
    ):
        assert isinstance(table.missing(path), kind)
    for path in (
        "/v1/models/x",
        "/x/infer",
        "/v1/models//infer",
        "/v1/models/a/b/infer",
    ):
        assert table.missing(path) is None


def test_versions_that_are_no_numbers() -> None:
    table = ModelTable()
    table.publish("m", entries("b", "1", "a"))
    assert table.paths["/v1/models/m/infer"].spec.version == "1"


def test_a_codec_is_made_with_its_entry() -> None:
    (entry,) = entries("1")
    assert entry.codec.spec is entry.spec
    limits = Limits(max_rank=3)
    assert fronts.entry(entry.runner, limits=limits).codec.limits is limits  # type: ignore[arg-type]


def test_every_change_is_reported() -> None:
    told: list[str] = []
    table = ModelTable(on_change=told.append)
    table.publish("m", entries("1"))
    table.publish("other", entries("1", name="other"))
    table.publish("m", ())
    table.all_changed()
    assert told == ["m", "other", "m", "other"]
