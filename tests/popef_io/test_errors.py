from __future__ import annotations

import pytest

from popef_io import (
    CorruptError,
    DuplicateBlobError,
    InvalidValueError,
    LimitError,
    Location,
    MissingBlobError,
    NotPopefError,
    PopefError,
    TruncatedError,
    WriterStateError,
)
from popef_io.errors import RuleViolation, shorten

WHERE = Location("model.popef", 192, 1, "DATA_TENSOR", "w")


def test_location_tells_what_is_known() -> None:
    assert str(WHERE) == "model.popef, blob 1 DATA_TENSOR 'w', offset 192"
    assert str(Location("f", 0)) == "f, offset 0"
    assert str(Location("f", 0, 0)) == "f, blob 0, offset 0"
    assert str(Location("f", 0, 0, "OPAQUE")) == "f, blob 0 OPAQUE, offset 0"


def test_location_keeps_names_readable() -> None:
    text = str(Location("f", 0, 0, "OPAQUE", "\x1b[31m" + "x" * 1000))
    assert r"'\x1b[31mxxx" in text
    assert "\x1b" not in text
    assert len(text) < 130


@pytest.mark.parametrize(("length", "text"), [(80, "'" + "x" * 80 + "'"), (81, "...'")])
def test_shorten(length: int, text: str) -> None:
    assert shorten("x" * length).endswith(text)
    assert len(shorten("x" * length)) == 82


def test_facts_are_attributes() -> None:
    truncated = TruncatedError("blob", needed=128, available=7, where=WHERE)
    assert (truncated.needed, truncated.available, truncated.where) == (128, 7, WHERE)
    assert str(truncated) == (
        f"{WHERE}: the file is truncated: blob needs 128 bytes, got 7"
    )
    limit = LimitError("rank", 33, 32)
    assert (limit.field, limit.value, limit.limit, limit.where) == (
        "rank",
        33,
        32,
        None,
    )
    assert str(limit) == "rank is 33, which exceeds the limit of 32"
    missing = MissingBlobError("METADATA", "net", "no metadata")
    assert (missing.kind, missing.name, missing.reason) == (
        "METADATA",
        "net",
        "no metadata",
    )
    double = DuplicateBlobError("OPAQUE", "o", "twice", where=WHERE)
    assert (double.kind, double.name) == ("OPAQUE", "o")
    invalid = InvalidValueError("must not be empty", field="name")
    assert (invalid.field, str(invalid)) == ("name", "name: must not be empty")
    assert CorruptError("broken", where=WHERE).reason == "broken"


@pytest.mark.parametrize(
    "kind",
    [
        CorruptError,
        DuplicateBlobError,
        InvalidValueError,
        LimitError,
        MissingBlobError,
        NotPopefError,
        TruncatedError,
        WriterStateError,
    ],
)
def test_one_root(kind: type[Exception]) -> None:
    assert issubclass(kind, PopefError)


def test_refusals_collect_their_path() -> None:
    refusal = RuleViolation("no").inside("shape").inside("tensor_info").inside("[3]")
    assert refusal.inside("anchors").field == "anchors[3].tensor_info.shape"
