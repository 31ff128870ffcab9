"""Which instance a process is.

Covers: plugins/popxl/src/popir/instances/identity.py.
"""

from __future__ import annotations

import pytest

import popir
from popir.instances import Identity, identity, is_launched


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Identity()),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, (1, 4, 4, 1, 1)),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "POPDIST_NUM_TOTAL_REPLICAS": "8"},
            (1, 2, 8, 4, 4),
        ),
        (
            # poprun's own come first: it may run beneath another launcher.
            {
                "POPDIST_INSTANCE_INDEX": "2",
                "POPDIST_NUM_INSTANCES": "3",
                "POPDIST_NUM_TOTAL_REPLICAS": "6",
                "PMI_RANK": "0",
                "PMI_SIZE": "1",
            },
            (2, 3, 6, 2, 4),
        ),
    ],
)
def test_who_is_who(variables: dict[str, str], expected: object) -> None:
    found = identity(variables)
    assert is_launched(variables) is bool(variables)
    if isinstance(expected, Identity):
        assert found == expected
        return
    assert expected == (
        *(found.index, found.count, found.replicas),
        *(found.local_replicas, found.offset),
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "instance 2 of 2"),
        ({"PMI_RANK": "0", "PMI_SIZE": "99999"}, "at most"),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK is 'x'"),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "2", "POPDIST_NUM_TOTAL_REPLICAS": "3"},
            "multiple of the number of instances",
        ),
        ({"POPDIST_NUM_INSTANCES": "2"}, "start the program with poprun"),
    ],
)
def test_variables_that_cannot_be(variables: dict[str, str], message: str) -> None:
    with pytest.raises(popir.IrError, match=message):
        identity(variables)
