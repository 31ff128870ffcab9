"""Polling the folder: changes that have settled, without a gateway."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from app.background import DaemonPool
from app.repository.control.folder_loads import FolderLoads
from app.repository.control.folder_polls import SETTLE, FolderPolls
from app.repository.control.remote_files import RemoteFiles, RemoteWatch
from app.repository.places import ModelPlaces
from app.repository.records import ModelRecords
from app.repository.repository import ModelRepository
from app.repository.source import ScannedModel
from tests.support import until


class Recorder:
    """In place of a repository: what it was told to bring up."""

    def __init__(self, records: ModelRecords) -> None:
        self.taken: list[tuple[str, int]] = []
        self._records = records

    async def load(self, scanned: ScannedModel, *_: object, **__: object) -> None:
        self.taken.append((scanned.name, len(scanned.versions)))
        self._records.record(scanned.name).stamp = scanned.stamp

    async def unload(self, name: str) -> None:
        self.taken.append((name, 0))

    def forget(self, name: str) -> None:
        self._records.remove(name)


@contextmanager
def polling(
    root: Path, seconds: float = 15.0
) -> Iterator[tuple[FolderPolls, Recorder]]:
    places = ModelPlaces(root)
    records = ModelRecords(places, "")
    recorder = Recorder(records)
    repository = cast("ModelRepository", recorder)
    pool = DaemonPool(1, "test")
    remote = RemoteFiles(records, None, pool, pool)
    loads = FolderLoads(records, places, repository, remote, pool, lazily=False)
    watch = RemoteWatch(remote, loads.follow_remote, polls=True, seconds=15.0)
    polls = FolderPolls(
        records, repository, loads, watch, known_only=False, seconds=seconds
    )
    try:
        yield polls, recorder
    finally:
        pool.close()


def test_what_is_still_written_is_left_alone(tmp_path: Path) -> None:
    """A look is a look here, however long the machine takes between two of them."""

    async def look() -> list[tuple[str, int]]:
        recorder.taken.clear()
        await polls.poll_once()
        return list(recorder.taken)

    async def follow() -> None:
        target = tmp_path / "m" / "1"
        target.mkdir(parents=True)
        with (target / "m.popef").open("wb", buffering=0) as file:
            for _ in range(5):
                file.write(b"x")
                assert await look() == []
        assert await look() == [("m", 1)]
        assert await look() == []
        shutil.copytree(target, tmp_path / "m" / "2")
        assert await look() == []
        (tmp_path / "m" / "2" / "m.popef").write_bytes(b"longer")
        assert await look() == []
        assert await look() == [("m", 2)]
        shutil.rmtree(tmp_path / "m")
        assert await look() == []
        target.mkdir(parents=True)  # it was only being replaced
        (target / "m.popef").write_bytes(b"new")
        assert await look() == []
        assert await look() == [("m", 1)]
        shutil.rmtree(tmp_path / "m")
        assert await look() == []
        assert await look() == [("m", 0)]
        assert await look() == []

    with polling(tmp_path) as (polls, recorder):
        asyncio.run(follow())


def test_a_folder_that_is_renamed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is gone again cannot settle, so it shortens no more pauses."""
    pauses: list[float] = []
    new = tmp_path / "m.new"
    (new / "1").mkdir(parents=True)
    (new / "1" / "m.popef").write_bytes(b"x")
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            new.rename(tmp_path / "m")
        elif len(pauses) == 5:
            polls.stop()
        await sleep(0)

    async def poll() -> None:
        polls.start()
        while len(pauses) < 5:
            await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    with polling(tmp_path, seconds=15.0) as (polls, recorder):
        asyncio.run(poll())
    assert recorder.taken == [("m", 1)]
    assert pauses == [15.0, SETTLE, SETTLE, 15.0, 15.0]


def test_a_folder_that_cannot_be_read_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as the reason is the same, and once more when it is over."""
    caplog.set_level(logging.INFO)
    root = tmp_path / "models"

    def change() -> None:
        until(lambda: polls.failed >= 3)
        root.touch()
        failed = polls.failed
        until(lambda: polls.failed >= failed + 3)
        root.unlink()
        root.mkdir()
        until(lambda: polls.polled_at)

    async def poll() -> None:
        polls.start()
        await asyncio.to_thread(change)
        polls.stop()

    with polling(root, seconds=0.001) as (polls, _):
        asyncio.run(poll())
    said = [record.getMessage().partition(" [Errno ")[0] for record in caplog.records]
    told = "cannot read the model repository:"
    assert said[:2] == [told, told]
    assert said[-1] == "the model repository can be read again"
    assert len(said) < polls.failed
