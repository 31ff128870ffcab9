"""The counts of a request are those of the checked-in table.

Covers: bench/counts.py.
"""

from __future__ import annotations

import tomllib

import pytest

from bench.counts import CASES, TABLE, differences, python_calls, to_toml

STATED = tomllib.loads(TABLE.read_text())


def test_every_case_has_its_row() -> None:
    assert STATED.keys() == CASES.keys()
    assert tomllib.loads(to_toml(STATED)) == STATED


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("small")])
def test_a_small_request_makes_as_many_calls_as_stated(name: str) -> None:
    found = python_calls(CASES[name])
    assert list(differences(STATED[name]["calls"], found, f"{name} calls")) == []


def test_what_changes_is_named_with_both_counts() -> None:
    stated = {"gateway": {"read": 2, "write": 2}}
    found = {"gateway": {"read": 2, "write": 3, "futex": 1}}
    assert list(differences(stated, found, "small-json plain")) == [
        "small-json plain gateway futex: 1, stated 0",
        "small-json plain gateway write: 3, stated 2",
    ]


def test_who_waits_first_is_no_change() -> None:
    stated = {"gateway": {"epoll_pwait": 2, "recvfrom": 4}}
    found = {"gateway": {"epoll_pwait": 1, "recvfrom": 9}}
    assert list(differences(stated, found, "large-npy plain")) == []
    (line,) = differences(stated, found, "small-npy plain")
    assert line == "small-npy plain gateway recvfrom: 9, stated 4"
