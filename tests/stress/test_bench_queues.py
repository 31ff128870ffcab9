"""`bench.queues`: every way sends everything back, and a wrong answer is seen."""

from __future__ import annotations

from typing import ClassVar

import pytest

from bench.drivers.queue_ways import WAYS, Copies, Opened, Rings
from bench.queues import Cell, Exchange, measure, payloads, report


@pytest.mark.stress
@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.name)
def test_messages_come_back(make: type) -> None:
    for in_flight, size in ((1, 100), (3, 70_000)):
        if make is Copies and in_flight > 1:
            continue  # it has room for one
        with Opened(make, size, in_flight) as way:
            exchange = Exchange(way, payloads(size))
            for _ in range(5):
                for _ in range(in_flight):
                    exchange.send()
                came = 0
                while came < in_flight:
                    came += exchange.receive(fully=True)


def test_a_wrong_answer_is_seen() -> None:
    class Wrong:
        name: ClassVar[str] = "wrong"

        def send(self, message: bytes) -> None:
            self.message = message[:-1] + b"?"

        def receive(self) -> list[bytes]:
            return [self.message]

        def close(self) -> None: ...

    exchange = Exchange(Wrong(), payloads(100))
    exchange.send()
    with pytest.raises(AssertionError, match="other bytes"):
        exchange.receive(fully=True)


def test_cells_and_their_report() -> None:
    (cell,) = measure([64], rounds=1, seconds=0.01, ways=[Rings])
    assert (cell.way, cell.size, cell.in_flight) == ("rings", 64, 8)
    assert cell.round_trip_us > 0 < cell.messages_per_second
    cells = [
        Cell(make.name, size, trip, 8, 1e6 / trip)  # type: ignore[attr-defined]
        for size in (64, 602_112)
        for trip, make in enumerate(WAYS, start=2)
    ]
    text = report(cells)
    assert "| round trip, us | 64 B | 602 KB |" in text
    assert "| Pipe | x2.00, x2.00 | x2.00, x2.00 |" in text
