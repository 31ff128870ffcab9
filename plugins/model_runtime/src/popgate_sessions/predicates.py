"""Predicates: choose the policy of an anchor (Model Runtime: `predicate_factory`).

Each function makes a predicate. The predicate returns `accept` if the anchor has the
property, else `reject`. They serve both kinds of policies, `AnchorCallbackPolicy` and
`PopefDataUsagePolicy`:

    create_queue_manager(
        input_predicate=used_by_main(
            flow, AnchorCallbackPolicy.BIND_USER_CB, AnchorCallbackPolicy.SKIP_CB
        )
    )
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeAlias, TypeVar

from popef_io import Anchor, Model, ProgramFlow

PolicyT = TypeVar("PolicyT", bound=IntEnum)
Predicate: TypeAlias = Callable[[Anchor], PolicyT]
#: Returns the number of compiled batches in the ring of an anchor's queue (Model
#: Runtime: `RingSizeMultiplierProdType`).
RingSizeMultiplier: TypeAlias = Callable[[Anchor], int]


@dataclass(frozen=True, slots=True)
class AnchorWithPolicy(Generic[PolicyT]):
    """The policy of the anchor with this name or stream handle."""

    anchor: str
    policy: PolicyT


@dataclass(frozen=True, slots=True)
class ProgramsWithPolicy(Generic[PolicyT]):
    """The policy of all anchors that one of these programs uses."""

    programs: Sequence[int]
    policy: PolicyT


def used_by(
    programs: Iterable[int], accept: PolicyT, reject: PolicyT
) -> Predicate[PolicyT]:
    """Select anchors of any of these programs (`predProgramIndexes`)."""
    wanted = _numbers(programs)
    return _when(lambda a: not wanted.isdisjoint(a.programs), accept, reject)


def used_by_load(
    flow: ProgramFlow, accept: PolicyT, reject: PolicyT
) -> Predicate[PolicyT]:
    """Select anchors of any load program (`predProgramFlowLoad`)."""
    return used_by(flow.load, accept, reject)


def used_by_main(
    flow: ProgramFlow, accept: PolicyT, reject: PolicyT
) -> Predicate[PolicyT]:
    """Select anchors of any main program (`predProgramFlowMain`)."""
    return used_by(flow.main, accept, reject)


def used_by_save(
    flow: ProgramFlow, accept: PolicyT, reject: PolicyT
) -> Predicate[PolicyT]:
    """Select anchors of any save program (`predProgramFlowSave`)."""
    return used_by(flow.save, accept, reject)


def not_assigned(accept: PolicyT, reject: PolicyT) -> Predicate[PolicyT]:
    """Select anchors that belong to no program (`predProgramNotAssigned`)."""
    return _when(lambda a: not a.programs, accept, reject)


def non_scalar(accept: PolicyT, reject: PolicyT) -> Predicate[PolicyT]:
    """Select anchors that have dimensions, or may have some (`predNonScalarType`)."""
    return _when(lambda a: a.tensor_info.shape != (), accept, reject)


def program_policies(
    groups: Iterable[ProgramsWithPolicy[PolicyT]], reject: PolicyT
) -> Predicate[PolicyT]:
    """Return the policy of the first group that has a program of the anchor."""
    table = [(_numbers(group.programs), group.policy) for group in groups]

    def predicate(anchor: Anchor) -> PolicyT:
        for programs, policy in table:
            if not programs.isdisjoint(anchor.programs):
                return policy
        return reject

    return predicate


def anchor_policies(
    anchors: Iterable[AnchorWithPolicy[PolicyT]], reject: PolicyT
) -> Predicate[PolicyT]:
    """Return the policy of the first entry that names the anchor, by name or handle."""
    table: dict[str, PolicyT] = {}
    for entry in anchors:
        table.setdefault(entry.anchor, entry.policy)

    def predicate(anchor: Anchor) -> PolicyT:
        return table.get(anchor.handle, table.get(anchor.name, reject))

    return predicate


def and_bind(
    accept: PolicyT, reject: PolicyT, *predicates: Predicate[PolicyT]
) -> Predicate[PolicyT]:
    """Return `accept` if every predicate returns `accept`, else `reject`."""
    return _when(lambda a: all(p(a) == accept for p in predicates), accept, reject)


def or_bind(
    accept: PolicyT, reject: PolicyT, *predicates: Predicate[PolicyT]
) -> Predicate[PolicyT]:
    """Return `accept` if any predicate returns `accept`, else `reject`."""
    return _when(lambda a: any(p(a) == accept for p in predicates), accept, reject)


def ring_size_for_programs(
    programs: Iterable[int], selected: int, others: int = 1
) -> RingSizeMultiplier:
    """Return `selected` for anchors of these programs, else `others`
    (`ringSizeMultForProgs`).
    """
    wanted = _numbers(programs)
    return lambda a: others if wanted.isdisjoint(a.programs) else selected


def ring_size_for_main_programs(
    model: Model, main: int, load_save: int = 1
) -> RingSizeMultiplier:
    """Return `main` for anchors of the main programs, else `load_save`
    (`ringSizeMultForMainProgs`).
    """
    return ring_size_for_programs(model.metadata.program_flow.main, main, load_save)


def _numbers(programs: Iterable[int]) -> frozenset[int]:
    """Return the numbers as Python integers, also if they are numpy's."""
    return frozenset(map(operator.index, programs))


def _when(
    accepts: Callable[[Anchor], bool], accept: PolicyT, reject: PolicyT
) -> Predicate[PolicyT]:
    return lambda anchor: accept if accepts(anchor) else reject
