"""Logging as the environment wants it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from popef_io import TRACE, configure_logging

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ([EWIDT]) \d+ ([\w.]+): (.*)")
NAME = "tests.logs"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(NAME)
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:] = []
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def configure(monkeypatch: pytest.MonkeyPatch, level: str, dest: str = "") -> bool:
    monkeypatch.setenv("TESTS_LOG_LEVEL", level)
    monkeypatch.setenv("TESTS_LOG_DEST", dest)
    return configure_logging("TESTS", [NAME])


def say_something(logger: logging.Logger) -> None:
    for level in (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, TRACE):
        logger.log(level, "level %d", level)


def letters(text: str) -> str:
    """The level of every line, which must all look like lines of a log."""
    matches = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(matches), text
    return "".join(m[1] for m in matches if m)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("OFF", ""),
        ("ERR", "E"),
        ("WARN", "EW"),
        ("INFO", "EWI"),
        ("debug", "EWID"),
        ("TRACE", "EWIDT"),
    ],
)
def test_levels(
    logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: str,
    expected: str,
) -> None:
    assert configure(monkeypatch, level) is (level != "OFF")
    say_something(logger)
    out, err = capsys.readouterr()
    assert (out, letters(err)) == ("", expected)


def test_standard_output(
    logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(monkeypatch, "INFO", "stdout")
    say_something(logger)
    out, err = capsys.readouterr()
    assert (letters(out), err) == ("EWI", "")


def test_a_file_is_appended_to(
    logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    for _ in range(2):  # setting up again adds no second handler
        configure(monkeypatch, "WARN", str(tmp_path / "log.txt"))
        say_something(logger)
    assert letters((tmp_path / "log.txt").read_text()) == "EWEW"
    assert capsys.readouterr() == ("", "")


def test_nothing_is_touched_where_no_level_is_set(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configure(monkeypatch, "", "stdout") is False
    assert (logger.handlers, logger.level, logger.propagate) == ([], 0, True)


def test_off_has_no_handler_and_formats_nothing(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bomb:
        def __repr__(self) -> str:
            raise AssertionError("formatted")

    configure(monkeypatch, "OFF")
    logger.error("%r", Bomb())
    assert not logger.handlers


@pytest.mark.parametrize(
    ("level", "dest", "words"),
    [
        ("LOUD", "", "TESTS_LOG_LEVEL must be one of OFF, ERR, WARN, INFO"),
        ("INFO", "/no/such/folder/log.txt", "cannot write to '/no/such/folder"),
    ],
)
def test_what_cannot_be_done_is_said(
    logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: str,
    dest: str,
    words: str,
) -> None:
    configure(monkeypatch, level, dest)
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_importing_is_enough(tmp_path: Path) -> None:
    code = """
import sys
from popef_io import Reader, Writer
with Writer(sys.argv[1]) as writer:
    with writer.create_opaque_blob("name") as blob:
        blob.write(b"data")
with Reader() as reader:
    reader.parse_file(sys.argv[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "file.popef"],
        cwd=ROOT,
        env={**os.environ, "POPEF_LOG_LEVEL": "TRACE", "POPEF_LOG_DEST": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert letters(done.stderr) == "DIDT"  # blob and file written; file and blob read
