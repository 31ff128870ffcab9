"""Failure isolation by bisection. Only the members that make a batch fail receive its
error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.run_failures import RUN_FAILURES, failure_of_error

T = TypeVar("T")


def isolate_failure(
    members: Sequence[T],
    error: Exception,
    run: Callable[[Sequence[T]], Exception | None],
    fail: Callable[[T, Exception], None],
) -> None:
    """Run the members of a batch that failed with `error` again, in smaller groups.

    `run` returns the error of a group, or None if it succeeded. `fail` is called for
    each member that fails alone, or whose group's failure concerns the whole group
    (engine/run_failures.py). Groups are halved, so one failing member among n costs 2
    log2 n runs. Once that many groups have failed, there are many failing members, and
    the rest run alone. So there are never more than n + 2 log2 n + 2 runs. The order of
    the members is kept.
    """
    halvings = 2 * len(members).bit_length()
    waiting: deque[Sequence[T]] = deque()

    def split(group: Sequence[T], error: Exception) -> None:
        nonlocal halvings
        if len(group) == 1 or not RUN_FAILURES[failure_of_error(error)].halves:
            for member in group:
                fail(member, error)
        elif halvings > 0:
            halvings -= 1
            half = len(group) // 2
            waiting.extendleft((group[half:], group[:half]))
        else:
            waiting.extendleft([member] for member in reversed(group))

    split(members, error)
    while waiting:
        group = waiting.popleft()
        failed = run(group)
        if failed is not None:
            split(group, failed)
