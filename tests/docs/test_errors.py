"""docs/reference/errors.md has an entry for each code that an answer may have."""

from __future__ import annotations

import re
from pathlib import Path

from app.errors import ERRORS, ERRORS_PAGE, error_body, help_address

ROOT = Path(__file__).resolve().parents[2]
#: A code stands behind a status, a message or the call that makes a body.
_WRITTEN = re.compile(
    r"(?:HttpError|error_body|refusal|Refusal|Row)\((?:[^()]|\([^()]*\))*?"
    r"\"([a-z]+(?:_[a-z]+)+)\"\W"
)
#: The same with a constant, and the line that gives the constant its value.
_NAMED = re.compile(r"HttpError\((?:[^()]|\([^()]*\))*?, ([A-Z_]+)\)")
_VALUE = re.compile(r"^([A-Z_]+)(?:: Final)? = \"(\w+)\"$", re.MULTILINE)


def codes() -> set[str]:
    found = {row.code for row in ERRORS.values()}
    paths = *ROOT.glob("app/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")
    texts = [path.read_text(encoding="utf-8") for path in paths]
    for text in texts:
        found |= set(_WRITTEN.findall(text))
    named = {name for text in texts for name in _NAMED.findall(text)}
    values = (pair for text in texts for pair in _VALUE.findall(text))
    return found | {value for name, value in values if name in named}


def test_every_code_has_an_entry() -> None:
    text = (ROOT / ERRORS_PAGE).read_text(encoding="utf-8")
    entries = re.findall(
        r'^\| \d{3}(?:, \d{3})* \| <a id="(\w+)"></a>`(\w+)` \|', text, re.MULTILINE
    )
    assert all(anchor == code for anchor, code in entries)
    listed = [code for _, code in entries]
    assert len(listed) == len(set(listed))
    assert codes() <= set(listed)
    assert {"url_too_long", "api_key_missing", "empty_input"} <= codes()


def test_bodies_have_the_address() -> None:
    assert b'"help":"docs/reference/errors.md#queue_full"' in error_body(
        "", "queue_full"
    )
    assert help_address("queue_full").partition("#")[0] == ERRORS_PAGE
