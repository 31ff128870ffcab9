"""Models in Python that workers run, each over links of its own."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.workers.tests.conftest import connect, metric, prefix
from tests.app.served import ServedGateway
from tests.support import until

MIXED, COUNT = "/v1/models/mixed/infer", "/v1/models/count/infer"
TOLD = "/v1/models/told/infer"


@pytest.fixture
def two(clients: dict[str, httpx.Client]) -> list[httpx.Client]:
    """The connections, once their workers run the models in Python themselves."""

    def run_here() -> bool:
        return all(
            prefix(client.post(path, json=body)) == where
            for where, client in clients.items()
            for path, body in ((MIXED, mixed(1, "a")), (COUNT, count(1, "a")))
        )

    until(run_here)
    return list(clients.values())


def mixed(x: int, text: str, timeout: float = 60.0) -> dict[str, Any]:
    parameters = {"timeout": int(timeout * 1e6)}
    return {"inputs": {"x": [x], "text": [text]}, "parameters": parameters}


def count(n: int, text: str) -> dict[str, Any]:
    return {"inputs": {"n": [n], "text": [text]}}


def ask(client: httpx.Client, x: int, text: str, timeout: float = 60.0) -> Any:
    return client.post(MIXED, json=mixed(x, text, timeout))


def answer(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return {o["name"]: o["data"][0] for o in response.json()["outputs"]}


def in_flight(served: ServedGateway) -> float:
    return metric(served, "popgate_requests_in_flight", model="mixed", version="1")


def runs(held: Path) -> None:
    """Returns when the run that `held` holds up has begun."""
    until(held.with_suffix(".runs").exists)


def test_a_batch_has_rows_of_all_and_only_guilty_ones_fail(
    served: ServedGateway, two: list[httpx.Client], tmp_path: Path
) -> None:
    for number, guilty in enumerate((1, 13)):
        held = tmp_path / str(number)
        with ThreadPoolExecutor(3) as pool, connect(served) as third:
            first = pool.submit(ask, third, 0, str(held))
            runs(held)
            asked = [
                pool.submit(ask, client, x, name)
                for client, x, name in zip(two, (guilty, 1), "ab", strict=True)
            ]
            until(lambda: in_flight(served) == 3)
            held.touch()
            assert answer(first.result()) == {"rows": 1, "id": str(held)}
            a, b = (one.result() for one in asked)
        if guilty == 1:
            assert answer(a) == {"rows": 2, "id": "a"}
            assert answer(b) == {"rows": 2, "id": "b"}
        else:
            assert a.status_code == 500
            assert "ValueError: thirteen" in a.text
            assert answer(b)["id"] == "b"


def test_what_is_given_up_is_given_up_there_and_nowhere_else(
    served: ServedGateway, two: list[httpx.Client], tmp_path: Path
) -> None:
    one, other = two
    never, held = str(tmp_path / "never"), tmp_path / "held"
    assert ask(one, 0, never, timeout=0.3).status_code == 504
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, other, 0, str(held))
        runs(held)
        with connect(served) as leaving, pytest.raises(httpx.ReadTimeout):
            leaving.post(MIXED, json=mixed(1, "gone"), timeout=0.3)
        until(lambda: in_flight(served) == 1)
        held.touch()
        assert answer(first.result())["id"] == str(held)


def test_streams_are_told_apart(served: ServedGateway, two: list[httpx.Client]) -> None:
    events = {"Accept": "text/event-stream"}
    with ExitStack() as streams:
        lines = [
            streams.enter_context(
                client.stream(
                    "POST", COUNT, json=count(1 << 20, f"of {n}"), headers=events
                )
            ).iter_lines()
            for n, client in enumerate(two)
        ]
        for i in range(20):
            for n, mine in enumerate(lines):
                data = next(line for line in mine if line.startswith("data: "))
                found = {o["name"]: o["data"] for o in json.loads(data[6:])["outputs"]}
                assert found == {"i": [i], "word": [f"of {n}"]}
        # The first goes, and the other one is answered still.
        two[0].close()
        served.wait_line("closed of 0")
        for i in range(20, 40):
            data = next(line for line in lines[1] if line.startswith("data: "))
            assert f'"data":[{i}]' in data
        assert "closed of 1" not in served.output
        two[1].close()
        served.wait_line("closed of 1")


def test_a_model_reads_parameters_of_any_length(
    clients: dict[str, httpx.Client],
) -> None:
    for where, client in clients.items():
        until(lambda: prefix(client.post(TOLD, json=told(1))) == where)  # noqa: B023
        for length in (250_000, 3):
            response = client.post(TOLD, json=told(length))
            assert prefix(response) == where
            assert answer(response) == {"length": length}


def test_a_called_model_reads_the_parameters_of_the_call(
    clients: dict[str, httpx.Client],
) -> None:
    path = "/v1/models/telling/infer"
    for where, client in clients.items():
        until(lambda: prefix(client.post(path, json=told(1))) == where)  # noqa: B023
        assert answer(client.post(path, json=told(9))) == {"length": 4}


def told(length: int) -> dict[str, Any]:
    return {"inputs": {"x": [1]}, "parameters": {"text": "x" * length}}


def test_a_process_that_dies_comes_back_for_all(
    served: ServedGateway, clients: dict[str, httpx.Client], two: list[httpx.Client]
) -> None:
    died = ask(two[0], 666, "dies")
    assert died.status_code == 503
    assert died.json()["code"] == "device_lost"

    def answers(where: str, client: httpx.Client) -> bool:
        response = ask(client, 1, "a")
        assert response.status_code in (200, 503), response.text
        return response.status_code == 200 and prefix(response) == where

    for where, client in clients.items():
        until(partial(answers, where, client))
