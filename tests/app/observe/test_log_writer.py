"""The log is written by a thread, whether it is read or not."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from select import PIPE_BUF
from typing import TypeAlias

import httpx
import pytest

from app.observe import log_writer
from app.observe.log_writer import LogWriter
from engine.devices import process_output
from tests.app.served import POPGATE, ROOT
from tests.support import WAIT, accepts, until


class Stuck(io.StringIO):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.begun.set()
        assert self.go_on.wait(WAIT)
        return super().write(text)


Made: TypeAlias = Callable[[io.StringIO | None], LogWriter]


@pytest.fixture
def made() -> Iterator[Made]:
    """Make writers, which are closed after the test."""
    writers: list[LogWriter] = []

    def make(stream: io.StringIO | None) -> LogWriter:
        writers.append(LogWriter(stream))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


def record(text: str, *arguments: object) -> logging.LogRecord:
    make = logging.getLogger("tests.writer").makeRecord
    return make("tests.writer", logging.INFO, "", 0, text, arguments, None)


def test_nobody_waits_for_a_log_that_is_not_read(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "MOST_WAITING", 3)
    monkeypatch.setattr(log_writer, "PATIENCE", 0.01)
    stuck = Stuck()
    writer = made(stuck)
    assert writer.is_written()  # there is nothing
    changing = ["first"]
    writer.handle(record("%s", changing))
    changing[0] = "other"
    assert stuck.begun.wait(WAIT)
    for number in range(5):
        writer.handle(record(f"line {number}"))
    assert not writer.is_written()
    stuck.go_on.set()
    until(lambda: stuck.getvalue().count("\n") == 5)
    assert stuck.getvalue().splitlines() == [
        "['first']", "2 lines could not be written in time and were dropped", "line 0",
        "line 1", "line 2",
    ]  # fmt: skip
    until(writer.is_written)


def test_long_lines_that_wait_take_bounded_memory(made: Made) -> None:
    stuck = Stuck()
    writer = made(stuck)
    writer.handle(record("first"))
    assert stuck.begun.wait(WAIT)
    longest = "x" * process_output.MAX_LINE
    for _ in range(2000):
        writer.handle(record(longest))
    writer.handle(record("a short line finds room"))
    stuck.go_on.set()
    until(writer.is_written)
    assert len(stuck.getvalue()) < 40_000_000
    assert "could not be written in time" in stuck.getvalue()
    assert stuck.getvalue().endswith("a short line finds room\n")


class Calls(io.StringIO):
    """Keeps what each call brought."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return len(text)


def test_lines_are_gathered_behind_the_first(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "GATHERED_FOR", 10 * WAIT)
    stream = Calls()
    writer = made(stream)
    writer.handle(record("first"))
    until(lambda: stream.pieces == ["first\n"])
    for text in ("second", "third", "fourth"):
        writer.handle(record(text))
    assert len(stream.pieces) == 1
    failed = record("an error")
    failed.levelno = logging.ERROR  # is not kept waiting, nor what came before it
    writer.handle(failed)
    until(lambda: len(stream.pieces) == 2)
    assert stream.pieces[1] == "second\nthird\nfourth\nan error\n"
    writer.handle(record("at the end"))
    assert writer.is_written()
    assert stream.pieces[2:] == ["at the end\n"]


def test_no_line_is_torn_that_others_write_beside(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes write to one pipe, which takes `PIPE_BUF` bytes in one."""
    monkeypatch.setattr(log_writer, "GATHERED_FOR", 10 * WAIT)
    stream = Calls()
    writer = made(stream)
    writer.handle(record("first"))
    until(lambda: len(stream.pieces) == 1)
    lines = [letter * size for size in (1000, 3000) for letter in "abcä€"]
    for line in (*lines, "x" * 2 * PIPE_BUF, "last"):
        writer.handle(record(line))
    assert writer.is_written()
    pieces = stream.pieces[1:]
    written = "".join(pieces).splitlines()
    assert written == [*lines, "x" * 2 * PIPE_BUF, "last"]
    assert all(piece.endswith("\n") for piece in pieces)
    long = [piece for piece in pieces if len(piece.encode()) > PIPE_BUF]
    assert [piece.count("\n") for piece in long] == [1] * len(long)
    assert pieces[0].count("\n") == 3


def test_a_stream_that_has_gone(made: Made) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        writer = made(stream)
        writer.handle(record("text"))
        assert writer.is_written()


def test_lines_that_a_full_disk_loses_are_counted() -> None:
    with suppress(OSError), open("/dev/full", "w") as full:
        writer = LogWriter(full)
        for number in range(3):
            writer.handle(record("line %d", number))
        assert writer.is_written()
        writer.close()
    assert writer.all_dropped == 3


def test_closing_ends_the_thread_once_all_is_written() -> None:
    stream = Calls()
    writer = LogWriter(stream)
    writer.close()  # nothing has been written yet
    for text in ("before", "after"):
        writer.handle(record(text))
        writer.close()
        until(lambda: text + "\n" in stream.pieces)  # noqa: B023
    until(lambda: "popgate-log" not in {one.name for one in threading.enumerate()})


def test_a_gateway_whose_log_is_not_read_answers_and_ends(tmp_path: Path) -> None:
    """Its standard error is a pipe that is full after some hundred requests."""
    address = str(tmp_path / "socket")
    options = ("--access-log", "all", "--log-format", "json")
    read, write = os.pipe()
    process = subprocess.Popen(
        [*POPGATE, *f"serve -m {tmp_path} --uds {address}".split(), *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=write,
        env={**os.environ, "POPGATE_POOL": f"test-log-{os.getpid()}"},
    )
    os.close(write)
    try:
        until(lambda: accepts(address))
        transport = httpx.HTTPTransport(uds=address)
        with httpx.Client(transport=transport, timeout=WAIT) as client:
            for _ in range(1000):  # of 200 bytes and more, each
                answer = client.get("http://localhost/v1/models/none")
                assert answer.status_code in (404, 503)
        process.terminate()
        assert process.wait(WAIT) == 0
        lines = os.read(read, 1 << 16).splitlines()
        # The last line may be cut; others than those of requests are among them.
        written = [json.loads(line) for line in lines[:-1]]
        found = {line["status"] for line in written if "status" in line}
        assert found
        assert found <= {404, 503}
    finally:
        process.kill()
        process.wait()
        os.close(read)


def test_a_line_waits_until_a_thread_can_start(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    writer = made(stream)

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        writer.handle(record("early"))
    writer.handle(record("late"))
    assert writer.is_written()
    assert stream.getvalue().splitlines() == ["early", "late"]
