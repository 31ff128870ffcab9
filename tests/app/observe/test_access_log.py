"""Which requests get a line, and that nobody waits for it to be written."""

from __future__ import annotations

import logging

import pytest

from app.observe.access_log import MOST_A_SECOND, AccessLog
from app.sizes import parse_ratio


@pytest.mark.parametrize(
    ("text", "ratio"),
    [("off", None), ("errors", 0.0), ("ALL", 1.0), ("0.01", 0.01), ("1", 1.0)],
)
def test_words(text: str, ratio: float | None) -> None:
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["", "some", "-1", "1.5", "nan", "0_1"])
def test_no_words(text: str) -> None:
    with pytest.raises(ValueError, match="must be off, errors, all or a share"):
        parse_ratio(text)


def test_a_share_of_the_answered() -> None:
    log = AccessLog(0.25)
    assert [log.wants_answered() for _ in range(8)].count(True) == 2
    assert not any(AccessLog(0.0).wants_answered() for _ in range(8))
    log = AccessLog(0.25)
    for _ in range(2):
        assert log.left == 3
        log.left = 0  # they were passed over
        assert log.wants_answered()
    log.set_ratio(0.375)
    assert [log.wants_answered() for _ in range(1000)].count(True) == 375
    assert all(AccessLog(1.0).wants_answered() for _ in range(8))


@pytest.mark.parametrize("processes", [1, 5])
def test_a_flood_is_counted_and_not_written(
    processes: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 10.0
    monkeypatch.setattr("app.observe.access_log.time.monotonic", lambda: second)
    log = AccessLog(0.0, processes)
    with caplog.at_level(logging.INFO, "app.access"):
        for _ in range(MOST_A_SECOND // processes + 7):
            log.write("a line", 400, {})
        assert len(caplog.messages) == MOST_A_SECOND // processes
        second += 1
        log.write("the next", 400, {})
        # Those that were answered are as many as were asked for.
        answered = AccessLog(0.5)
        for _ in range(MOST_A_SECOND + 7):
            answered.write("answered", 200, {})
    assert caplog.messages.count("answered") == MOST_A_SECOND + 7
    del caplog.records[-MOST_A_SECOND - 7 :]
    assert caplog.messages[-2:] == [
        "7 more requests were omitted from the log",
        "the next",
    ]
