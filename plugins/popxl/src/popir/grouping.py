"""Groups of replicas that hold the same values, or shards of one value.

Shards are equal parts of the elements of an array, in row-major order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Defined here, because popir.dtypes is above groups.
_Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = Literal["reduce", "gather", "concat", "scatter", "shard", "slice"]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of replicas: the number of the group for each replica.

    All groups have the same size.
    """

    assignment: tuple[int, ...]
    stride: int | None
    """Return the distance of the members of a group, or None if it is not constant."""

    @property
    def num_replicas(self) -> int:
        return len(self.assignment)

    @property
    def num_groups(self) -> int:
        return max(self.assignment) + 1

    @property
    def size(self) -> int:
        """Members of each group."""
        return len(self.assignment) // self.num_groups

    @property
    def members(self) -> list[list[int]]:
        """The replicas of each group, in order."""
        result: list[list[int]] = [[] for _ in range(self.num_groups)]
        for replica, group in enumerate(self.assignment):
            result[group].append(replica)
        return result

    def transposed(self) -> Groups:
        """Return the first members of all groups together, the second, and so on."""
        seen: dict[int, int] = {}
        ranks = []
        for group in self.assignment:
            ranks.append(seen.get(group, 0))
            seen[group] = ranks[-1] + 1
        return from_assignment(ranks, len(ranks))


def strided(num_replicas: int, stride: int, size: int | None) -> Groups:
    """Return groups filled in turn. Each group takes the first free replica and every
    `stride`-th replica after it.

    Raises ValueError if the numbers do not divide.
    """
    if not 0 < stride <= num_replicas or num_replicas % stride:
        raise ValueError(
            f"stride {stride} must be positive and divide the number of replicas "
            f"({num_replicas})"
        )
    count = num_replicas // stride if size is None else size
    if not 0 < count <= num_replicas:
        raise ValueError(
            f"group_size {count} must be from 1 to the number of replicas "
            f"({num_replicas})"
        )
    step = 1 if count == 1 else stride
    if num_replicas % (step * count):
        raise ValueError(
            f"the number of replicas ({num_replicas}) must be a multiple of "
            f"stride * group_size ({step} * {count})"
        )
    block = step * count
    assignment = tuple(r // block * step + r % step for r in range(num_replicas))
    return Groups(assignment, step)


def from_assignment(assignment: Sequence[int], num_replicas: int) -> Groups:
    """Return groups from a list.

    Raises ValueError if their sizes differ, or if they are not numbered from 0 in the
    order of their first members.
    """
    given = tuple(int(group) for group in assignment)
    if len(given) != num_replicas:
        raise ValueError(
            f"the assignment has {len(given)} entries for {num_replicas} replicas"
        )
    if list(dict.fromkeys(given)) != list(range(len(set(given)))):
        raise ValueError(
            f"groups must be numbered from 0 in the order of their first members, "
            f"found {list(given)}"
        )
    members = Groups(given, None).members
    if len({len(each) for each in members}) > 1:
        raise ValueError(f"all groups must be of one size, found {list(given)}")
    steps = {b - a for each in members for a, b in pairwise(each)}
    if not steps:
        return Groups(given, 1)
    if len(steps) > 1:
        return Groups(given, None)
    (step,) = steps
    size = len(members[0])
    if num_replicas % (step * size):
        return Groups(given, None)
    constant = strided(num_replicas, step, size)
    return constant if constant.assignment == given else Groups(given, None)


def refined(groups: Groups) -> tuple[Groups, list[int], list[int]]:
    """Return the constant groups that form `groups`; for each of those the group that
    contains it; for each group its first one.
    """
    members = groups.members
    stride = min(b - a for m in members for a, b in pairwise(m))
    size = 0
    for each in members:
        run = 1
        for a, b in pairwise(each):
            if b - a > stride:
                size, run = gcd(size, run), 0
            run += 1
        size = gcd(size, run)
    constant = strided(groups.num_replicas, stride, size)
    to_device = [groups.assignment[each[0]] for each in constant.members]
    to_host = [to_device.index(group) for group in range(groups.num_groups)]
    return constant, to_device, to_host


@dataclass(frozen=True, eq=False, slots=True)
class Collective:
    """The members of each group exchange values."""

    what: Kind
    operator: str
    """The operator, for messages."""
    groups: Groups
    op: str = ""
    axis: int = 0
    shape: tuple[int, ...] = ()
    """The shape of the result."""


def shard_size(elements: int, members: int) -> int:
    """Return the number of elements of each of so many shards."""
    return -(-elements // members)


def shard(whole: _Array, count: int, rank: int) -> _Array:
    """Return the shard `rank` of `count`, in row-major order, padded with zeros."""
    flat = whole.reshape(-1)
    size = shard_size(flat.size, count)
    part = flat[rank * size : (rank + 1) * size]
    if part.size == size:
        return part
    return np.concatenate([part, np.zeros(size - part.size, flat.dtype)])


def joined(shards: Sequence[_Array], shape: tuple[int, ...]) -> _Array:
    """Return the whole that was cut into `shards`."""
    flat = np.concatenate([each.reshape(-1) for each in shards])
    return flat[: prod(shape)].reshape(shape)
