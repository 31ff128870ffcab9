"""Log lines for people and for log systems."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from app.log import set_up_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json")
    logger = logging.getLogger("tests.json")
    logger.info("a %s", "text\nof two lines", extra={"model": "digits", "rows": 3})
    logger.debug("not this")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    first, second = (json.loads(x) for x in capsys.readouterr().err.splitlines())
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
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING tests.text: careful")
