"""Every hostile file of the list: refused with the right error, and cheaply.

Covers: popef_io/validation.py.
"""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest

from popef_io import PopefError, Reader
from tests.popef_io.containers import parse
from tests.popef_io.hostile import HOSTILE, Hostile

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "popef-format.md"
MEMORY_LIMIT = 16 << 20  # bytes besides the file; the decoder alone may take 8 MiB


def use(data: bytes) -> None:
    """Parse and use everything."""
    reader = Reader()
    parse(reader, data)
    use_contents(reader)


def use_contents(reader: Reader) -> None:
    for executable in reader.executables:
        executable.raw()
    for tensor in reader.tensors:
        tensor.data()
    for feed in reader.feeds:
        feed.data()
    for opaque in reader.opaque_blobs:
        opaque.raw()
    for unknown in reader.unknown_blobs:
        unknown.raw()


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
def test_is_refused(hostile: Hostile) -> None:
    data = hostile.data()
    reader = Reader()
    if hostile.on_access:
        parse(reader, data)
    refused = pytest.raises(hostile.error, match=re.escape(hostile.says))
    with refused as caught:
        use_contents(reader) if hostile.on_access else parse(reader, data)
    where = caught.value.where
    assert where is not None
    assert where.source == "bytes"
    assert where.blob == hostile.blob
    assert 0 <= where.offset <= len(data)
    assert f"offset {where.offset}" in str(caught.value)
    if not hostile.on_access:
        assert reader.blobs == ()


# The largest list of blobs takes what its 8 MiB of headers take.
@pytest.mark.parametrize(
    "hostile", [item for item in HOSTILE if item.number != 27], ids=str
)
def test_takes_little_memory(hostile: Hostile) -> None:
    data = hostile.data()
    tracemalloc.start()
    try:
        with pytest.raises(PopefError):
            use(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_LIMIT + 4 * len(data)


def test_the_document_has_their_number_and_errors() -> None:
    text = DOCUMENT.read_text()
    assert f"builds {len(HOSTILE)} damaged files" in text
    for item in HOSTILE:
        when = "first use" if item.on_access else "parsing"
        row = rf"^\|.*\| `{item.error.__name__}` \| {when} \|$"
        assert re.search(row, text, re.MULTILINE), item
