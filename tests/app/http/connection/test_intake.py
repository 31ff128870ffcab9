"""Bytes behind a request are handled in their turn, and a flood delays reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.http.connection.backlog import MOST
from app.http.connection.flow import Flow
from app.http.connection.intake import Intake
from app.http.connection.turns import MOST_READS, READ, Turns
from app.http.floods import BURST, Floods
from app.serving.transfer_memory import Share, TransferMemory
from tests.app.http.connection.test_flow import Transport


class Wire(Transport):
    is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed


class Reader:
    """A connection whose request is answered when `ready` is set."""

    def __init__(self) -> None:
        self.ready = False
        self.taken = b""

    def read_message(self, data: bytes, at: int) -> None:
        self.taken += data[at:]

    def is_ready(self) -> bool:
        return self.ready

    def wants_more(self) -> bool:
        return True


def checked(check: Callable[[Reader, Wire, Intake], None]) -> Reader:
    """Run `check` in an event loop, and then the turns that it asked for."""

    async def run() -> Reader:
        reader, transport, loop = Reader(), Wire(), asyncio.get_running_loop()
        flow = Flow(transport, Share(TransferMemory()))
        intake = Intake(reader, transport, flow, Turns(), Floods(), loop)
        check(reader, transport, intake)
        await asyncio.sleep(0)
        return reader

    return asyncio.run(run())


def test_waiting_bytes_are_handled_once_the_answer_is_written() -> None:
    def check(reader: Reader, transport: Wire, intake: Intake) -> None:
        intake.hold(b"..next", 2)
        assert not intake.is_due
        reader.ready = True
        intake.go_on_soon()
        assert (intake.is_due, reader.taken) == (True, b"")

    assert checked(check).taken == b"next"


def test_a_full_backlog_stops_reading() -> None:
    def check(reader: Reader, transport: Wire, intake: Intake) -> None:
        intake.hold(bytes(MOST), 0)
        intake.read_on()
        assert transport.told == ["pause"]
        intake.backlog.pop()
        intake.read_on()
        assert transport.told == ["pause", "resume"]

    checked(check)


def test_refusals_in_a_flood_delay_reading() -> None:
    def check(reader: Reader, transport: Wire, intake: Intake) -> None:
        intake.slow_down(1.0)
        assert transport.told == []
        intake.slow_down(100.0 * BURST)
        intake.slow_down(100.0 * BURST)
        intake.read_on()
        assert transport.told == ["pause"]
        assert repr(intake) == "<Intake <Backlog of 0 bytes>, slowed down>"
        reader.ready = True
        intake.hold(b"later", 0)
        assert not intake.is_due
        intake.close()

    assert checked(check).taken == b""


def test_nothing_is_handled_behind_the_end() -> None:
    def close(reader: Reader, transport: Wire, intake: Intake) -> None:
        reader.ready = True
        intake.hold(b"late", 0)
        intake.close()
        intake.read_on()
        assert (transport.told, repr(intake)) == ([], "<Intake <Backlog of 0 bytes>>")

    def disconnect(reader: Reader, transport: Wire, intake: Intake) -> None:
        reader.ready = True
        intake.hold(b"late", 0)
        transport.is_closed = True

    assert checked(close).taken == checked(disconnect).taken == b""


def test_a_turn_reads_so_much_of_large_bodies() -> None:
    def check(reader: Reader, transport: Wire, intake: Intake) -> None:
        for _ in range(MOST_READS - 1):
            intake.spend(READ)
        assert transport.told == []
        intake.spend(READ)
        assert transport.told == ["pause"]
        told.append(transport.told)

    told: list[list[str]] = []
    checked(check)
    assert told == [["pause", "resume"]]
