"""The counts of a request and of a swap are those of the checked-in table.

Covers: bench/counts/cases.py, bench/counts/memory.py, bench/counts/python_calls.py,
bench/counts/swap.py, bench/counts/system_calls.py, bench/counts/table.py,
bench/servers/interposed.py, bench/servers/interposed.c.
"""

from __future__ import annotations

import sys
import tomllib

import orjson
import pytest

from bench.counts.__main__ import SWAP
from bench.counts.cases import CASES
from bench.counts.memory import memory_and_wakeups
from bench.counts.python_calls import python_calls
from bench.counts.swap import swap_calls, swap_memory, swap_system_calls
from bench.counts.system_calls import can_trace, system_calls
from bench.counts.table import TABLE, differences, to_toml, updated
from bench.servers.interposed import can_build

STATED = tomllib.loads(TABLE.read_text())
needs_compiler = pytest.mark.skipif(not can_build(), reason="needs cc and glibc")
# With orjson 3.10 and 3.11 a large JSON request takes 29 to 73 fewer large blocks.
needs_this_orjson = pytest.mark.skipif(
    tuple(map(int, orjson.__version__.split(".")[:2])) < (3, 12),
    reason="orjson before 3.12 makes fewer large blocks than the table has",
)
needs_strace = pytest.mark.skipif(not can_trace(), reason="needs strace")
# Another Python allocates otherwise, and its library makes other calls in a swap. From
# 3.12 on a comprehension is no call, of which a large request makes five.
needs_this_python = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the table was counted with Python 3.11"
)


def changes(name: str, kind: str, found: object) -> list[str]:
    return list(differences(STATED[name][kind], found, f"{name} {kind}"))


def test_every_case_has_its_row() -> None:
    assert STATED.keys() == {*CASES, SWAP}
    assert tomllib.loads(to_toml(STATED)) == STATED


def test_every_row_has_all_kinds() -> None:
    kinds = {
        f"{code}{kind}"
        for code in ("plain", "compiled")
        for kind in ("", "-memory", "-wakeups")
    }
    for name in CASES:
        assert STATED[name].keys() == {"calls", *kinds}
    assert STATED[SWAP].keys() == {"calls", "models", *kinds}


@needs_this_python
def test_requests_make_as_many_calls_as_stated() -> None:
    found = python_calls([*CASES.values()])
    wrong = [line for name in found for line in changes(name, "calls", found[name])]
    assert wrong == []


@needs_this_python
@needs_this_orjson
@needs_compiler
def test_requests_allocate_copy_and_wake_as_stated() -> None:
    found = memory_and_wakeups([*CASES.values()], compiled=False)
    wrong = [
        line
        for name, kinds in found.items()
        for kind, counts in kinds.items()
        for line in changes(name, f"plain-{kind}", counts)
    ]
    assert wrong == []


@needs_strace
def test_requests_make_as_many_system_calls_as_stated() -> None:
    found = system_calls([*CASES.values()], compiled=False)
    wrong = [line for name in found for line in changes(name, "plain", found[name])]
    assert wrong == []


@needs_this_python
def test_a_swap_makes_as_many_calls_as_stated() -> None:
    wrong = [
        line
        for kind, counts in swap_calls().items()
        for line in changes(SWAP, kind, counts)
    ]
    assert wrong == []


@needs_this_python
@needs_compiler
def test_a_swap_allocates_copies_and_wakes_as_stated() -> None:
    wrong = [
        line
        for kind, counts in swap_memory(compiled=False).items()
        for line in changes(SWAP, f"plain-{kind}", counts)
    ]
    assert wrong == []


@needs_strace
def test_a_swap_makes_as_many_system_calls_as_stated() -> None:
    assert changes(SWAP, "plain", swap_system_calls(compiled=False)) == []


def test_what_changes_is_named_with_both_counts() -> None:
    stated = {"gateway": {"read": 2, "write": 2}}
    found = {"gateway": {"read": 2, "write": 3, "futex": 1}}
    assert list(differences(stated, found, "small-json plain")) == [
        "small-json plain gateway futex: 1, stated 0",
        "small-json plain gateway write: 3, stated 2",
    ]


def test_one_more_copy_or_wake_up_is_a_change() -> None:
    stated = {"gateway": {"blocks": 347, "large_blocks": 4, "copies": 3.0}}
    found = {"gateway": {"blocks": 350, "large_blocks": 5, "copies": 4.0}}
    (line,) = differences(stated, found, "large-binary plain-memory")
    assert line == "large-binary plain-memory gateway copies: 4.0, stated 3.0"
    stated, found = {"device": {"signals": 1}}, {"device": {"signals": 2}}
    (line,) = differences(stated, found, "small-json plain-wakeups")
    assert line == "small-json plain-wakeups device signals: 2, stated 1"


def test_one_more_load_is_a_change() -> None:
    stated, found = {"device": {"loads": 1}}, {"device": {"loads": 2}}
    (line,) = differences(stated, found, "swap models")
    assert line == "swap models device loads: 2, stated 1"


def test_a_count_that_differs_by_chance_stays_in_the_table() -> None:
    stated = {"gateway": {"epoll_pwait": 2, "read": 2, "write": 2}}
    found = {"gateway": {"epoll_pwait": 3, "ppoll": 1, "read": 3}}
    new = {"gateway": {"epoll_pwait": 2, "read": 3}}
    assert updated(stated, found, "small-json plain") == new
    assert updated(None, found, "small-json plain") == found


def test_how_a_device_sleeps_in_a_swap_is_no_change() -> None:
    stated, found = {"device": {"pselect6": 7, "read": 7}}, {"device": {"read": 7}}
    assert list(differences(stated, found, "swap plain")) == []


def test_who_waits_first_is_no_change() -> None:
    stated = {"gateway": {"epoll_pwait": 2, "recvfrom": 4}}
    found = {"gateway": {"epoll_pwait": 1, "recvfrom": 9}}
    assert list(differences(stated, found, "large-npy plain")) == []
    (line,) = differences(stated, found, "small-npy plain")
    assert line == "small-npy plain gateway recvfrom: 9, stated 4"
