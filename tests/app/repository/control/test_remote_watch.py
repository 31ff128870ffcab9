"""The polls for changes of remote models, without a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from app.repository.control.remote_watch import RemoteWatch
from app.repository.model_sources import RemoteUrl
from app.repository.places import ModelPlaces
from app.repository.records import ModelRecords
from app.repository.scan import ModelSource


class Remote:
    """In place of the cache: each look finds new files."""

    async def drop_unused(self, url: RemoteUrl) -> None:
        pass

    async def fetch(self, name: str, url: RemoteUrl) -> bool:
        return True


class Loads:
    """In place of `FolderLoads`: a load ends when the test says so."""

    def __init__(self, source: ModelSource) -> None:
        self.remote = Remote()
        self.source = source
        self.begun, self.may_end, self.ended = (asyncio.Event() for _ in range(3))

    async def present(self, name: str) -> ModelSource:
        return self.source

    async def follow(self, name: str, source: ModelSource) -> None:
        self.begun.set()
        await self.may_end.wait()
        self.ended.set()


def test_a_load_that_has_begun_ends_although_nothing_watches_the_model() -> None:
    async def test() -> None:
        url: Any = "https://h.test/m.onnx"
        source = ModelSource("m", url=url)
        loads: Any = Loads(source)
        records = ModelRecords(ModelPlaces(Path("models")), "")
        watch = RemoteWatch(records, loads, polls=True, seconds=0.0)
        watch.follow("m", source)
        await loads.begun.wait()
        watch.follow("m", None)
        loads.may_end.set()
        async with asyncio.timeout(10):
            await loads.ended.wait()
        assert not watch.looks()

    asyncio.run(test())
