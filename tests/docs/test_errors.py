"""docs/reference/errors.md has an entry for each code that an answer may have."""

from __future__ import annotations

import re
from pathlib import Path

from app.errors import ERRORS, ERRORS_PAGE, error_body, help_address

ROOT = Path(__file__).resolve().parents[2]
#: A code stands behind a status, a message or the call that makes a body.
_WRITTEN = re.compile(
    r"(?:HttpError|error_body|Refusal|Row)\((?:[^()]|\([^()]*\))*?"
    r"\"([a-z]+(?:_[a-z]+)+)\"\W"
)


def codes() -> set[str]:
    found = {row.code for row in ERRORS.values()}
    for path in (*ROOT.glob("app/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")):
        found |= set(_WRITTEN.findall(path.read_text(encoding="utf-8")))
    return found


def test_every_code_has_an_entry() -> None:
    text = (ROOT / ERRORS_PAGE).read_text(encoding="utf-8")
    entries = re.findall(
        r'^\| \d{3} \| <a id="(\w+)"></a>`(\w+)` \|', text, re.MULTILINE
    )
    assert all(anchor == code for anchor, code in entries)
    listed = [code for _, code in entries]
    assert len(listed) == len(set(listed))
    assert codes() <= set(listed)
    assert {"url_too_long", "api_key_missing", "queue_full"} <= codes()


def test_bodies_have_the_address() -> None:
    assert b'"help":"docs/reference/errors.md#queue_full"' in error_body(
        "", "queue_full"
    )
    assert help_address("queue_full").partition("#")[0] == ERRORS_PAGE
