"""The polls for changes of remote models, without a gateway."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from app.repository.control.remote_files import RemoteWatch
from app.repository.model_sources import RemoteUrl
from app.repository.source import ScannedModel


class Remote:
    """In place of the cache: each look finds new files."""

    async def drop_unused(self, url: RemoteUrl) -> None:
        pass

    async def fetch(self, name: str, url: RemoteUrl) -> bool:
        return True


def test_a_load_that_has_begun_ends_although_nothing_watches_the_model() -> None:
    async def test() -> None:
        url, remote = cast("Any", "https://h.test/m.onnx"), cast("Any", Remote())
        begun, may_end, ended = (asyncio.Event() for _ in range(3))

        async def use(name: str, url: RemoteUrl) -> None:
            begun.set()
            await may_end.wait()
            ended.set()

        watch = RemoteWatch(remote, use, polls=True, seconds=0.0)
        watch.follow("m", ScannedModel("m", url=url))
        await begun.wait()
        watch.follow("m", None)
        may_end.set()
        async with asyncio.timeout(10):
            await ended.wait()
        assert not watch.looks()

    asyncio.run(test())
