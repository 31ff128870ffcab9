"""Twice what a model can do, for a second; how fast and how right: `bench.overload`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.drivers.client import Answer
from bench.overload import (
    Overload,
    check_retry_after,
    measure_capacity,
    overload,
    prepare,
    retry_after,
)
from bench.servers.server import gateway


@pytest.mark.stress
def test_everybody_is_answered_or_told_when_to_come_back(tmp_path: Path) -> None:
    with gateway(prepare(tmp_path, 500, ["alone"]), devices="cpu:1") as server:
        server.wait_ready()
        path = "/v1/models/alone/infer"
        capacity = asyncio.run(measure_capacity(server, path, 0.5))
        deadline = 10 / capacity
        found, rate = Overload(1.0), 3 * capacity
        while not found.refused and rate < 50 * capacity:
            # Where nobody is refused the machine was busier when it was measured.
            found = asyncio.run(overload(server, path, rate, deadline, 1.0))
            rate *= 2
        times = asyncio.run(check_retry_after(server, path, 20, 3 / capacity))
        assert server.stop() == 0
    assert found.other == []
    assert found.taken
    assert found.refused
    assert found.unannounced == 0
    assert times is None or min(times) > 0


def test_what_is_not_as_predicted_is_said() -> None:
    def complaints(found: Overload) -> str:
        return "; ".join(found.complaints(slack=0.1))

    assert "0 were taken" in complaints(Overload(1.0))
    good = Overload(1.0, taken=[0.5] * 999, refused=[0.01])
    assert complaints(good) == ""
    good.late = [1.05] * 20
    assert "of those taken were in time" in complaints(good)
    good.refused.append(3.0)
    assert "a request waited 3.000 s" in complaints(good)
    good.count(Answer(500, {}, b"oh"), 0.1)
    assert "1 other answers, the first: 500 b'oh'" in complaints(good)
    good.count(Answer(429, {}, b""), 0.1)
    assert "1 refusals had no Retry-After" in complaints(good)


@pytest.mark.parametrize(
    ("seconds", "milliseconds", "expected"),
    [("1", "20", 0.02), ("3", "2001", 2.001), ("3", "1999", None), ("x", "1", None)],
)
def test_both_headers_agree(
    seconds: str, milliseconds: str, expected: float | None
) -> None:
    headers = {"retry-after": seconds, "retry-after-ms": milliseconds}
    assert retry_after(Answer(429, headers, b"")) == expected
