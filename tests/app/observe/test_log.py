"""Log lines for people and for log systems."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest
from _pytest.capture import CaptureResult

from app.observe.log import LogControl, LogSettings, is_written, set_up_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Every logger is left as it was; those that came to be are as if new."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {logger.name: logger.level for logger in loggers()}
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    for logger in loggers():
        logger.setLevel(levels.get(logger.name, logging.NOTSET))


def loggers() -> list[logging.Logger]:
    known = logging.getLogger().manager.loggerDict.values()
    return [logger for logger in known if isinstance(logger, logging.Logger)]


def written_to(capsys: pytest.CaptureFixture[str]) -> CaptureResult[str]:
    """What the log's thread has written."""
    assert is_written()
    return capsys.readouterr()


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json")
    logger = logging.getLogger("tests.json")
    logger.info("a %s", "text\nof two lines", extra={"model": "digits", "rows": 3})
    logger.debug("not this")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    first, second = (json.loads(x) for x in written_to(capsys).err.splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "tests.json",
        "message": "a text\nof two lines",
        "model": "digits",
        "rows": 3,
    }
    assert "ValueError: why" in second["exception"]


def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("warning")
    logging.getLogger("tests.text").warning("careful")
    logging.getLogger("tests.text").info("not this")
    (line,) = written_to(capsys).err.splitlines()
    assert line.endswith("WARNING tests.text: careful")


def test_control_shows_and_hides(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    control = LogControl("info")
    logger = logging.getLogger("tests.control")

    def written() -> str:
        for level in ("debug", "info", "warning", "error", "critical"):
            getattr(logger, level)("%s", level[0])
        return "".join(line[-1] for line in written_to(capsys).err.splitlines())

    assert written() == "iwec"
    for settings, letters in (
        (LogSettings(), "iwec"),
        (LogSettings(verbose_level=1), "diwec"),
        (LogSettings(info=False, verbose_level=2), "dwec"),
        (LogSettings(info=False), "wec"),
        (LogSettings(warning=False), "iec"),
        (LogSettings(info=False, warning=False, error=False), "c"),
    ):
        control.apply(settings)
        assert written() == letters, settings


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_control_begins_with_what_is_shown_already(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    settings = LogControl(level).settings
    for other in range(logging.DEBUG, logging.CRITICAL + 1, 10):
        assert settings.shows(other) is (other >= number)


def test_times_in_iso_8601(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    control = LogControl("info")
    control.apply(LogSettings(format="ISO8601"))
    logging.getLogger("tests.iso").info("now")
    (line,) = written_to(capsys).err.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ", line)
    control.apply(LogSettings())
    logging.getLogger("tests.iso").info("again")
    assert "T" not in written_to(capsys).err.split(" INFO")[0]
