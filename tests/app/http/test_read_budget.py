"""Large bodies have a number of bytes of each turn together, however many they are."""

from __future__ import annotations

import asyncio

import uvloop

from app.http.read_budget import MOST, ReadBudget


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_turn_has_so_many_bytes_and_the_next_one_as_many() -> None:
    async def spend() -> None:
        budget, loop = ReadBudget(), asyncio.get_running_loop()
        for _ in range(3):
            assert not budget.spend(MOST // 2, loop)
            assert not budget.spend(MOST // 4, loop)
            assert budget.spend(MOST // 2, loop)
            assert budget.spend(1, loop)
            await turns(2)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(spend())


def test_all_that_wait_go_on_in_their_order_some_in_a_turn() -> None:
    async def wait() -> None:
        budget, loop = ReadBudget(), asyncio.get_running_loop()
        gone_on: list[int] = []
        for number in range(10):
            assert budget.spend(MOST, loop)
            budget.wait(lambda number=number: gone_on.append(number))  # type: ignore[misc]
        assert gone_on == []
        await turns(1)
        assert 0 < len(gone_on) < 10
        await turns(4)
        assert gone_on == [*range(10)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wait())
