"""Failure isolation: which members fail, in how many runs, in which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.worker.failure_isolation import isolate_failure


class Trial:
    """A batch of which some members make every run fail that they are in."""

    def __init__(self, count: int, failing: set[int]) -> None:
        self.runs = 0
        self.ended: list[int] = []
        self.failed: list[int] = []
        self.failing = failing
        error = self.run(range(count))
        if error is not None:
            isolate_failure(range(count), error, self.run, self.fail)

    def run(self, members: Sequence[int]) -> Exception | None:
        self.runs += 1
        if self.failing & set(members):
            return ValueError("failing")
        self.ended += members
        return None

    def fail(self, member: int, error: Exception) -> None:
        assert str(error) == "failing"
        self.ended.append(member)
        self.failed.append(member)


@pytest.mark.parametrize("count", [1, 2, 3, 64, 100])
@pytest.mark.parametrize("where", [0, 0.5, 0.99])
def test_one_failing_member_is_found(count: int, where: float) -> None:
    failing = int(count * where)
    trial = Trial(count, {failing})
    assert trial.failed == [failing]
    assert trial.ended == list(range(count))
    assert trial.runs <= 1 + 2 * (count - 1).bit_length()


@pytest.mark.parametrize("every", [1, 2, 7])
def test_many_failing_members_cost_little_more_than_runs_alone(every: int) -> None:
    failing = set(range(0, 100, every))
    trial = Trial(100, failing)
    assert set(trial.failed) == failing
    assert trial.ended == list(range(100))
    assert trial.runs <= 100 + 2 * 7 + 3


def test_what_fails_only_together_fails_no_member() -> None:
    ended: list[int] = []

    def run(members: Sequence[int]) -> Exception | None:
        if len(members) > 3:
            return ValueError("too many")
        ended.extend(members)
        return None

    def never(member: int, error: Exception) -> None:
        raise AssertionError(f"{member} is failed")

    isolate_failure(range(20), ValueError("too many"), run, never)
    assert ended == list(range(20))
