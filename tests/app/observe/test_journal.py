"""What is kept of requests, and what their lines say."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from app.observe.access_log import AccessLog
from app.observe.journal import (
    MOST_GATHERED,
    SLOW_FOR,
    SLOWEST,
    Answered,
    Asked,
    Failed,
    Journal,
    Stamps,
)
from app.observe.metrics import ModelMetrics
from tests.support import WAIT

MODEL = ModelMetrics("m", "3")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
ASKED = Asked(b"id-1", "POST", "/v1/models/m/infer", "10.0.0.7", PARENT)
MS = 1_000_000


def stamps(took_ms: int, began: int = 0) -> Stamps:
    """Decoded in 1 ms, queued 2, computed 3, encoded 1; the rest is its way back."""
    ended = began + took_ms * MS
    return (
        b"id-1", MODEL, 0, began, began + MS, 2 * MS, 3 * MS, ended - MS, ended,
        2, 8, "cpu:0", "/v1/models/m/infer",
    )  # fmt: skip


def keep(journal: Journal, one: Stamps) -> None:
    """As the request path does."""
    journal.last.append(one)
    if one[8] - one[3] > journal.slow_ns:
        journal.keep_slow(one)


def test_phases_add_up() -> None:
    answered = Answered._make(stamps(20))
    assert answered.phases() == {
        "receive": 0, "decode": 1, "queue": 2, "compute": 3, "wake": 13, "encode": 1,
    }  # fmt: skip
    assert sum(answered.phases().values()) * MS == answered.total_ns


def test_the_slowest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    monkeypatch.setattr("app.observe.journal.time.monotonic_ns", lambda: 0)
    for number in range(3 * SLOWEST):
        keep(journal, stamps(10 + number * 7 % 150))
    took = [one.total_ns // MS for one in journal.slowest()]
    expected = sorted((10 + n * 7 % 150 for n in range(3 * SLOWEST)), reverse=True)
    assert took == expected[:SLOWEST]
    assert journal.slow_ns == took[-1] * MS
    # Those of long ago make room.
    keep(journal, stamps(200, began=(SLOW_FOR + 1) * 1000 * MS))
    assert journal.slow_ns == 0
    assert [one.total_ns for one in journal.slowest()] == [200 * MS]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "app.access")
    return caplog


def test_the_line_of_an_answered_request(lines: pytest.LogCaptureFixture) -> None:
    journal = Journal(AccessLog(1.0))
    journal.log_answered(ASKED, Answered._make(stamps(20)))
    (record,) = lines.records
    said = vars(record)
    assert said["request_id"] == "id-1"
    assert (said["model"], said["version"], said["device"]) == ("m", "3", "cpu:0")
    assert (said["batch_size"], said["rows"], said["status"]) == (8, 2, 200)
    assert (said["queue_ms"], said["compute_ms"]) == (2, 3)
    assert (said["client"], said["trace_id"]) == ("10.0.0.7", TRACE)
    assert record.getMessage().startswith("POST /v1/models/m/infer 200 ")
    assert record.getMessage().endswith(" client=10.0.0.7 model=m batch_size=8")


def test_lines_of_answered_requests_are_written_together(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an event loop; in the order in which the requests ended, and with the time."""
    monkeypatch.setattr("app.observe.journal.GATHERED_FOR", 10 * WAIT)
    journal = Journal(AccessLog(1.0))

    def answer(*numbers: int) -> None:
        for number in numbers:
            asked = ASKED._replace(request_id=b"id-%d" % number)
            journal.log_answered(asked, Answered._make(stamps(20)))

    def logged() -> list[int]:
        found = [str(vars(record)["request_id"]) for record in lines.records]
        return [int(text.removeprefix("id-")) for text in found]

    async def ask() -> None:
        before = time.time()
        answer(1, 2)
        after = time.time()
        assert not lines.records
        while time.time() < after + 0.001:
            pass
        asked = ASKED._replace(request_id=b"id-3")
        journal.fail(Failed(asked, MODEL, 400, "invalid_input", "why", 5, 0.0012))
        assert logged() == [1, 2, 3]
        first, _, failed = lines.records
        assert before - 0.001 < first.created < after + 0.001 <= failed.created
        assert abs(first.created % 1 * 1000 - first.msecs) < 1
        answer(4)
        journal.log_without_model(ASKED._replace(request_id=b"id-5"), 200, 0.1)
        assert logged() == [1, 2, 3, 4, 5]
        answer(*range(6, 6 + MOST_GATHERED))
        assert logged() == list(range(1, 6 + MOST_GATHERED))  # they have not waited
        answer(0)
        # They wait for so long at most.
        monkeypatch.setattr("app.observe.journal.GATHERED_FOR", 0.01)
        journal.write_gathered()
        answer(0)
        count = len(lines.records)
        while len(lines.records) == count:  # noqa: ASYNC110
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(ask(), WAIT))


def test_the_line_of_a_failed_request(lines: pytest.LogCaptureFixture) -> None:
    failed = Failed(ASKED, MODEL, 400, "invalid_input", "expected\n'x'", 5, 0.0012)
    journal = Journal(AccessLog(0.0))
    journal.fail(failed)
    journal.log_answered(ASKED, Answered._make(stamps(20)))
    (record,) = lines.records
    assert vars(record)["error"] == "expected\n'x'"
    assert record.getMessage() == (
        "POST /v1/models/m/infer 400 1.2 ms id=id-1 client=10.0.0.7 model=m "
        """code=invalid_input error="expected\\n'x'\" """
        "help=docs/reference/errors.md#invalid_input"
    )
    assert list(journal.failed) == [failed]


def test_off(lines: pytest.LogCaptureFixture) -> None:
    journal = Journal(AccessLog(None))
    failed = Failed(ASKED, None, 500, "internal_error", "why", 5, 0.1)
    journal.fail(failed)
    journal.log_answered(ASKED, Answered._make(stamps(20)))
    journal.log_without_model(ASKED, 200, 0.1)
    assert not lines.records
    assert list(journal.failed) == [failed]  # pages show it all the same
