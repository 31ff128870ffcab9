"""Several feeders of the gateway's devices, told as one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from app.observe.answers import Answers
from app.observe.metrics import ModelMetrics
from app.serving.feeders import Feeder, Feeders


class Told:
    """A feeder that keeps what it was told."""

    def __init__(self, name: str, told: list[object]) -> None:
        self.name, self.told = name, told
        self.answers = Answers()

    def model_changed(self, name: str) -> None:
        self.told.append((self.name, name))

    async def settled(self, leaving: Sequence[object]) -> None:
        self.told.append((self.name, *leaving))

    def counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        return (ModelMetrics(self.name, version),)

    def answered(self) -> Iterable[Answers]:
        return (self.answers,)


def test_all_of_them_are_told_in_order() -> None:
    told: list[object] = []
    first, second = Told("first", told), Told("second", told)
    feeders = Feeders()
    feeders.add(first, second)
    feeders.model_changed("m")
    asyncio.run(feeders.settled(["runner"]))
    assert told == [
        *(("first", "m"), ("second", "m")),
        *(("first", "runner"), ("second", "runner")),
    ]
    assert [one.name for one in feeders.counted("m", "1")] == ["first", "second"]
    assert list(feeders.answered()) == [first.answers, second.answers]
    both: Feeder = feeders
    assert both is feeders
