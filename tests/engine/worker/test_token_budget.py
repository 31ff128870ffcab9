"""The size of batches of rows of different length follows the measured times."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.worker.token_budget import PROBED, TokenBudget, size_class

Cost = Callable[[int, int], float]


def calls_cost(length: int, rows: int) -> float:
    """A call costs as much as 30 tokens of short rows; rows of 100 tokens and more get
    dearer beside each other."""
    tokens = length * rows
    return 30 + tokens * (1 + (0.3 * (rows > 1) if length >= 100 else 0))


def run(
    budget: TokenBudget,
    cost: Cost,
    length: int,
    batches: int = 1000,
    waiting: int = 1000,
    noise: float = 0.0,
) -> list[int]:
    """Run batches as large as the budget allows; return their rows."""
    chance = random.Random(1)
    found = []
    for _ in range(batches):
        rows = max(1, min(waiting, budget.next_limit(length) // length))
        found.append(rows)
        took = cost(length, rows)
        if noise and chance.random() < 0.2:
            took *= 1 + chance.random() * noise
        budget.record(length, rows, round(1000 * took))
    return found


def test_the_usual_size_holds_until_something_is_measured() -> None:
    budget = TokenBudget(256, 1024)
    assert [budget.limit(length) for length in (1, 8, 128, 256)] == [256] * 4
    assert budget.limit(300) == 512  # one row of this length


@pytest.mark.parametrize("noise", [0.0, 20.0])
def test_batches_grow_as_long_as_a_token_gets_cheaper(noise: float) -> None:
    budget = TokenBudget(256, 4096)
    run(budget, calls_cost, 8, noise=noise)
    # 256 tokens cost 286, 512 cost 542: 5 % less each. 1,024 would save 2.8 % more.
    assert budget.limit(8) == 512
    run(budget, calls_cost, 128, noise=noise)
    assert budget.limit(128) == 128
    assert budget.limit(8) == 512


def test_another_machine_is_learned_again() -> None:
    budget = TokenBudget(256, 4096)
    run(budget, calls_cost, 8)
    run(budget, lambda length, rows: 1 + length * rows, 8, batches=3000)
    assert budget.limit(8) == 64  # a call costs a 64th of it, and a 32nd of half
    run(budget, lambda length, rows: 1000 + length * rows, 8, batches=3000)
    assert budget.limit(8) == 4096


def test_the_most_is_never_exceeded() -> None:
    budget = TokenBudget(300, 300)
    for length in (7, 100, 299):
        rows = run(budget, lambda *_: 1000, length)
        assert max(rows) * length <= 300
        assert rows.count(300 // length) > 900


def test_few_batches_have_another_size() -> None:
    budget = TokenBudget(256, 1024)
    run(budget, lambda length, rows: 100 + length * rows, 8)
    rows = run(budget, lambda length, rows: 100 + length * rows, 8, batches=640)
    assert 0 < 640 - rows.count(128) <= 640 / PROBED


def test_batches_that_are_not_full_decide_nothing_about_larger_ones() -> None:
    budget = TokenBudget(256, 1024)
    run(budget, calls_cost, 8, waiting=3)
    assert budget.limit(8) == 256


def test_what_is_kept_is_bounded() -> None:
    budget = TokenBudget(256, 8192)
    for length in range(1, 3000, 7):
        run(budget, calls_cost, length, batches=3)
    assert len(repr(budget)) < 300
    assert size_class(1) == 0
    assert [size_class(n) for n in (2, 3, 4, 5, 256, 257)] == [1, 2, 2, 3, 8, 9]
