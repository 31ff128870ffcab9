"""Text of clients in the log."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest

from app.observe.log import JsonFormatter, TextFormatter
from app.observe.log_text import MOST_SHOWN, escaped, escaped_lines, quoted, shortened
from tests.app.served import ServedGateway, add

FORGED = "2026-01-01 00:00:00,000 INFO    app: fake"
#: A line end, a terminal's escape sequence in its two forms, text that runs backwards,
#: a line separator, half of a surrogate pair, a tag beyond 16 bits.
WILD = f"a\n{FORGED}\r\x1b[31m\x9b31m\u202e\u2028\ud800\U000e0001"


def test_a_value_is_one_word() -> None:
    assert quoted("/v1/models/a") == "/v1/models/a"
    assert quoted("x client=10.0.0.1") == "'x client=10.0.0.1'"
    assert quoted(WILD).isprintable()
    assert len(quoted("x" * 10**6)) < MOST_SHOWN + 100
    assert shortened("x" * 10**6).endswith("(1000000 characters)")
    assert escaped("gr\u00fc\u00dfe") == "gr\u00fc\u00dfe"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("Reshape:0/1 é 数", "Reshape:0/1 é 数"),
        ("a\tb\x7f", r"a\tb\x7f"),
        ("\u2028\u200b", r"\u2028\u200b"),
        ("\udc80", r"\udc80"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_no_line_looks_like_the_first() -> None:
    text = escaped_lines(f"first\n{FORGED}\n\tindented\x1b")
    assert text == f"first\n    {FORGED}\n    \tindented\\x1b"


def record(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        return logging.LogRecord(
            "tests", logging.ERROR, "", 0, "failed: %s", (text,), sys.exc_info()
        )


def test_what_a_client_wrote_forges_no_line() -> None:
    """Neither in a message nor in the text of an exception."""
    first, *more = TextFormatter().format(record(WILD)).splitlines()
    assert re.match(r"\d{4}-.* ERROR   tests: failed: a", first)
    assert any(FORGED in line for line in more)
    assert all(line.startswith("    ") for line in more)
    assert all(line.isprintable() for line in more)


def test_json_lines_hold_nothing_that_a_terminal_obeys() -> None:
    line = JsonFormatter().format(record(WILD))
    assert line.isprintable()
    assert json.loads(line)["message"] == f"failed: {WILD}"
    plain = WILD.replace("\ud800", "")
    line = JsonFormatter().format(record(plain))
    assert line.isprintable()
    assert json.loads(line)["message"] == f"failed: {plain}"


@pytest.mark.parametrize("workers", [1, 2])
def test_paths_ids_and_errors_over_http(tmp_path: Path, workers: int) -> None:
    add(tmp_path, "m")
    more = ("--workers", str(workers)) if workers > 1 else ()
    with ServedGateway(tmp_path, "--access-log", "all", *more) as gateway:
        client = gateway.wait_ready().client
        wild = "a%0a2026-01-01%2000:00:00,000%20INFO%20fake%1b%5b31m%c2%9b%e2%80%ae"
        client.post(f"/v1/models/{wild}/infer", content=b"{}")
        client.get(f"/v1/models/{wild}")
        client.get(f"/{wild}", headers={"x-request-id": "x client=10.0.0.1"})
        body = {"inputs": {"in\u202eput\n2026": [[1]]}}
        assert client.post("/v1/models/m/infer", json=body).status_code == 400
        client.get("/v1/models", headers={"x-request-id": "the-last"})
        gateway.wait_line("id=the-last")
        lines = list(gateway.lines)
    about = [line for line in lines if "fake" in line or "in\\u202eput" in line]
    assert len(about) >= 4
    assert all(" app.access: " in line for line in about)
    assert all(line.isprintable() for line in lines)
    assert any("id='x client=10.0.0.1'" in line for line in lines)
