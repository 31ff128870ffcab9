"""Placement of a variable: the part of the host's data on each replica.

The host has one array for a variable, with a leading axis of groups if there are
several. Each replica has the data of its group, or its shard of that data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from popir.dtypes import Array, to_carrier
from popir.grouping import Groups, joined, shard
from popir.remote import RemoteBuffer


@dataclass(eq=False, slots=True)
class Placement:
    """Placement of a variable whose value differs between replicas."""

    groups: Groups | None = None
    """Groups of replicas with the same values; None: all."""
    buffer: RemoteBuffer | None = None
    """The remote buffer that has it as a row; None: it is on the device."""
    offset: int = 0
    shards: int = 1
    """Number of parts into which its elements are cut, one for each member
    of a group.
    """
    retrieved: Array | None = None
    """Array for the values of all replicas, if the host retrieves them; None: it
    retrieves one value for each group.
    """


ALIKE = Placement()


def shares(data: Array, placement: Placement, replicas: int) -> list[Array]:
    """Return each replica's part of `data`: a view, except for a padded shard."""
    groups = _groups(placement, replicas)
    found = []
    for replica in range(replicas):
        group = groups.assignment[replica]
        whole = _of_group(data, groups, group)
        if placement.shards > 1:
            rank = groups.members[group].index(replica) % placement.shards
            whole = shard(whole, placement.shards, rank)
        found.append(whole)
    return found


def retrieved(placement: Placement, replicas: int) -> list[int]:
    """Return the replicas whose values the host takes."""
    if placement.retrieved is not None:
        return list(range(replicas))
    several = placement.shards
    groups = _groups(placement, replicas).members
    return sorted(r for members in groups for r in members[:several])


def collect(
    data: Array, placement: Placement, values: Mapping[int, Array], replicas: int
) -> None:
    """Copy the replicas' values into `data`: each group's first member's."""
    groups, several = _groups(placement, replicas), placement.shards
    shape = data.shape[1:] if groups.num_groups > 1 else data.shape
    for group, members in enumerate(groups.members):
        target = _of_group(data, groups, group)
        first = [values[r] for r in members[:several]]
        if several == 1:
            _put(target, first[0])
        else:
            _put(target, joined(first, shape))
        if placement.retrieved is None:
            continue
        into = to_carrier(placement.retrieved)
        for at, replica in enumerate(members):
            start = at // several * several
            parts = [values[r] for r in members[start : start + several]]
            into[replica] = parts[0] if several == 1 else joined(parts, shape)


def is_alone(placement: Placement, replicas: int) -> bool:
    """Return whether each part of the data belongs to one replica only."""
    return placement.shards == _groups(placement, replicas).size


def _of_group(data: Array, groups: Groups, group: int) -> Array:
    """Return a view of a group's part of the host's array, scalars included."""
    return data[group, ...] if groups.num_groups > 1 else data


def _put(target: Array, value: Array) -> None:
    if target.shape != value.shape or not np.shares_memory(target, value):
        target[...] = value


def _groups(placement: Placement, replicas: int) -> Groups:
    return placement.groups or Groups((0,) * replicas, 1)
