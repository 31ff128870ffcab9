"""The sequence models of the triton profile, by the stock clients."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from tritonclient import http as client
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

from tests.app.served import ServedGateway

VALUES = [11, 7, 5, 3, 2, 0, 1]


def tensor(value: int) -> Any:
    made = client.InferInput("INPUT", [1, 1], "INT32")
    return [made.set_data_from_numpy(np.full([1, 1], value, np.int32))]


def steps(values: list[int], identifier: int | str) -> list[dict[str, Any]]:
    """The arguments of the requests of one sequence."""
    return [
        {
            "inputs": tensor(value),
            "sequence_id": identifier,
            "sequence_start": index == 0,
            "sequence_end": index == len(values) - 1,
        }
        for index, value in enumerate(values)
    ]


def accumulated(values: list[int], identifier: int) -> list[int]:
    sums = list(accumulate(values))
    sums[-1] += identifier
    return sums


@pytest.mark.parametrize(
    ("model", "identifier", "expected"),
    [
        ("simple_sequence", 1000, [1, *VALUES]),
        ("simple_sequence", "a4e2c1b0-8a4e-4c0f-bd5e", [1, *VALUES]),
        ("simple_dyna_sequence", 1001, [1, *VALUES[:-1], VALUES[-1] + 1001]),
        ("simple_string_dyna_sequence", "1002", accumulated([0, *VALUES], 1002)),
    ],
)
def test_tritons_numbers(
    triton: ServedGateway, model: str, identifier: int | str, expected: list[int]
) -> None:
    with client.InferenceServerClient(triton.url.removeprefix("http://")) as stock:
        results = [
            int(stock.infer(model, **step).as_numpy("OUTPUT")[0][0])
            for step in steps([0, *VALUES], identifier)
        ]
    assert results == expected


def test_many_sequences_at_once(triton: ServedGateway) -> None:
    async def sequence(stock: Any, identifier: int) -> list[int]:
        model = "simple_string_dyna_sequence"
        found = []
        for step in steps([identifier, *VALUES], str(identifier)):
            result = await stock.infer(model, **step)
            found.append(int(result.as_numpy("OUTPUT")[0][0]))
        return found

    async def main() -> None:
        url = triton.url.removeprefix("http://")
        async with aio.InferenceServerClient(url) as stock:
            found = await asyncio.gather(*(sequence(stock, i) for i in range(1, 20)))
        for identifier, results in enumerate(found, 1):
            assert results == accumulated([identifier, *VALUES], identifier)

    asyncio.run(main())


def test_errors_and_descriptions(triton: ServedGateway) -> None:
    with client.InferenceServerClient(triton.url.removeprefix("http://")) as stock:
        with pytest.raises(InferenceServerException) as caught:
            stock.infer("simple_sequence", tensor(1))
        assert "must specify a non-zero or non-empty correlation ID" in str(
            caught.value
        )
        with pytest.raises(InferenceServerException) as caught:
            stock.infer("simple_sequence", tensor(1), sequence_id=31)
        assert "must specify the START flag on the first request" in str(caught.value)
        metadata = stock.get_model_metadata("simple_dyna_sequence")
        assert [t["name"] for t in metadata["inputs"]] == ["INPUT"]
        config = stock.get_model_config("simple_dyna_sequence")["sequence_batching"]
        assert config["max_sequence_idle_microseconds"] == 5_000_000
        kinds = {c["name"]: c["control"][0]["kind"] for c in config["control_input"]}
        assert kinds["CORRID"] == "CONTROL_SEQUENCE_CORRID"
        assert "sequence" in stock.get_server_metadata()["extensions"]
