"""Settling a batch that failed: who is blamed, in how many runs, in which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.worker.blame import settle


class Trial:
    """A batch of which some members make every run fail that they are in."""

    def __init__(self, count: int, guilty: set[int]) -> None:
        self.runs = 0
        self.ended: list[int] = []
        self.blamed: list[int] = []
        self.guilty = guilty
        error = self.run(range(count))
        if error is not None:
            settle(range(count), error, self.run, self.fail)

    def run(self, members: Sequence[int]) -> Exception | None:
        self.runs += 1
        if self.guilty & set(members):
            return ValueError("guilty")
        self.ended += members
        return None

    def fail(self, member: int, error: Exception) -> None:
        assert str(error) == "guilty"
        self.ended.append(member)
        self.blamed.append(member)


@pytest.mark.parametrize("count", [1, 2, 3, 64, 100])
@pytest.mark.parametrize("where", [0, 0.5, 0.99])
def test_one_guilty_member_is_found(count: int, where: float) -> None:
    guilty = int(count * where)
    trial = Trial(count, {guilty})
    assert trial.blamed == [guilty]
    assert trial.ended == list(range(count))
    assert trial.runs <= 1 + 2 * (count - 1).bit_length()


@pytest.mark.parametrize("every", [1, 2, 7])
def test_many_guilty_members_cost_little_more_than_runs_alone(every: int) -> None:
    guilty = set(range(0, 100, every))
    trial = Trial(100, guilty)
    assert set(trial.blamed) == guilty
    assert trial.ended == list(range(100))
    assert trial.runs <= 100 + 2 * 7 + 3


def test_what_fails_only_together_is_blamed_on_nobody() -> None:
    ended: list[int] = []

    def run(members: Sequence[int]) -> Exception | None:
        if len(members) > 3:
            return ValueError("too many")
        ended.extend(members)
        return None

    def never(member: int, error: Exception) -> None:
        raise AssertionError(f"{member} is blamed")

    settle(range(20), ValueError("too many"), run, never)
    assert ended == list(range(20))
