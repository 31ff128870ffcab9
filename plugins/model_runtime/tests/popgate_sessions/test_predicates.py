"""Predicates give the policy that they were told to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from popef_io import Anchor, DataType, ProgramFlow, TensorInfo, TensorType
from popgate_sessions import (
    AnchorCallbackPolicy,
    AnchorWithPolicy,
    PopefDataUsagePolicy,
    ProgramsWithPolicy,
    anchor_policies,
    and_bind,
    non_scalar,
    not_assigned,
    or_bind,
    program_policies,
    ring_size_for_programs,
    used_by,
    used_by_load,
    used_by_main,
    used_by_save,
)

USER, EMPTY, SKIP = AnchorCallbackPolicy
FLOW = ProgramFlow(load=(0, 1), main=(2,), save=(3,))


def anchor(name: str, *programs: int, shape: tuple[int, ...] | None = (2,)) -> Anchor:
    info = TensorInfo(shape, DataType.F32)
    return Anchor(name, f"h2d_{name}", info, TensorType.INPUT, programs)


ANCHORS = (
    anchor("weights", 0),
    anchor("x", 2),
    anchor("both", 1, 3),
    anchor("free"),
    anchor("scalar", 2, shape=()),
    anchor("unknown", 3, shape=None),
)


def accepted(
    predicate: Callable[[Anchor], AnchorCallbackPolicy],
    accept: AnchorCallbackPolicy = USER,
) -> list[str]:
    return [a.name for a in ANCHORS if predicate(a) is accept]


@pytest.mark.parametrize(
    ("predicate", "names"),
    [
        (used_by_load(FLOW, USER, EMPTY), ["weights", "both"]),
        (used_by_main(FLOW, USER, EMPTY), ["x", "scalar"]),
        (used_by_save(FLOW, USER, EMPTY), ["both", "unknown"]),
        (used_by([0, 2], USER, EMPTY), ["weights", "x", "scalar"]),
        (used_by([], USER, EMPTY), []),
        (not_assigned(USER, EMPTY), ["free"]),
        (non_scalar(USER, EMPTY), ["weights", "x", "both", "free", "unknown"]),
        (
            and_bind(
                USER, EMPTY, used_by_main(FLOW, USER, EMPTY), non_scalar(USER, EMPTY)
            ),
            ["x"],
        ),
        (
            or_bind(
                USER, EMPTY, used_by_main(FLOW, USER, EMPTY), not_assigned(USER, EMPTY)
            ),
            ["x", "free", "scalar"],
        ),
        (or_bind(USER, SKIP), []),
        (
            and_bind(
                USER, SKIP, used_by_main(FLOW, SKIP, EMPTY), not_assigned(USER, SKIP)
            ),
            [],
        ),
    ],
)
def test_who_is_accepted(
    predicate: Callable[[Anchor], AnchorCallbackPolicy], names: list[str]
) -> None:
    assert accepted(predicate) == names


def test_the_rest_is_rejected() -> None:
    predicate = used_by_main(FLOW, SKIP, EMPTY)
    assert accepted(predicate, SKIP) == ["x", "scalar"]
    assert accepted(predicate, EMPTY) == ["weights", "both", "free", "unknown"]


def test_policies_by_program() -> None:
    predicate = program_policies(
        [ProgramsWithPolicy([3], SKIP), ProgramsWithPolicy((1, 2), USER)], EMPTY
    )
    assert accepted(predicate, SKIP) == ["both", "unknown"]  # the first that fits
    assert accepted(predicate, USER) == ["x", "scalar"]
    assert accepted(predicate, EMPTY) == ["weights", "free"]


def test_policies_by_anchor() -> None:
    predicate = anchor_policies(
        [
            AnchorWithPolicy("x", USER),
            AnchorWithPolicy("h2d_both", SKIP),
            AnchorWithPolicy("x", SKIP),
        ],
        EMPTY,
    )
    assert accepted(predicate, USER) == ["x"]
    assert accepted(predicate, SKIP) == ["both"]
    assert len(accepted(predicate, EMPTY)) == 4


def test_they_serve_the_other_kind_of_policy_too() -> None:
    predicate = used_by_load(
        FLOW,
        PopefDataUsagePolicy.USE_USER_DATA,
        PopefDataUsagePolicy.USE_POPEF_DATA_IF_ANY,
    )
    assert predicate(ANCHORS[0]) is PopefDataUsagePolicy.USE_USER_DATA
    assert predicate(ANCHORS[1]) is PopefDataUsagePolicy.USE_POPEF_DATA_IF_ANY


def test_ring_sizes() -> None:
    multiplier = ring_size_for_programs([2], 5)
    assert [multiplier(a) for a in ANCHORS] == [1, 5, 1, 1, 5, 1]
    assert ring_size_for_programs([2], 5, 3)(ANCHORS[0]) == 3
