"""Groups of replicas."""

from __future__ import annotations

import pytest

from popir import from_assignment, refined, strided


@pytest.mark.parametrize(
    ("stride", "size", "groups"),
    [(1, 4, "00001111"), (2, 2, "01012323"), (2, 4, "01010101"), (4, 2, "01230123")],
)
def test_groups_are_filled_in_turn(stride: int, size: int, groups: str) -> None:
    made = strided(8, stride, size)
    assert "".join(map(str, made.assignment)) == groups
    assert (made.stride, made.size) == (stride, size)
    assert from_assignment(list(made.assignment), 8) == made


def test_a_group_of_one_has_stride_one() -> None:
    assert strided(8, 4, 1) == strided(8, 1, 1)


@pytest.mark.parametrize(("stride", "size"), [(0, 1), (3, 2), (9, 1), (2, 9), (2, 3)])
def test_what_does_not_come_out_even_is_refused(stride: int, size: int) -> None:
    with pytest.raises(ValueError, match="replicas"):
        strided(8, stride, size)


def test_transposed() -> None:
    def turned(groups: str) -> str:
        numbers = [int(each) for each in groups]
        made = from_assignment(numbers, len(numbers)).transposed()
        return "".join(map(str, made.assignment))

    assert turned("01012323") == "00110011"
    assert turned("010101232323") == "001122001122"


def test_groups_without_a_stride_are_made_of_some_that_have_one() -> None:
    groups = from_assignment([0, 0, 1, 1, 0, 0, 1, 1], 8)
    assert groups.stride is None
    constant, to_device, to_host = refined(groups)
    assert "".join(map(str, constant.assignment)) == "00112233"
    assert (to_device, to_host) == ([0, 1, 0, 1], [0, 1])


@pytest.mark.parametrize("wrong", [[0, 0, 1], [1, 0], [0, 0, 1, 1, 2, 2, 2, 2]])
def test_wrong_assignments_are_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match=r"groups|entries"):
        from_assignment(wrong, 8 if len(wrong) == 8 else 2)
