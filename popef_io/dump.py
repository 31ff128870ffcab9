"""Dumps of a container for people (`dump_text`) and programs (`dump_document`).

A plugin makes them, because only commands need them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from popef_io.reader import Reader

Document = dict[str, Any]

#: Entry point group of a module with functions of these names.
DUMPS = "popgate.popef_dumps"


def dump_document(
    reader: Reader,
    *,
    metadata_only: bool = False,
    all: bool = False,  # noqa: A002 - the word of `popef_dump --all`
) -> Document:
    """Return everything that `reader` has read, as lists, mappings, strings and
    numbers.

    Its keys are `files`, `blobs` (left out if `metadata_only`) and `metadata`, which
    has one entry for each described executable. `all` adds details for readers of the
    file's bytes: flags, offsets inside the blob, checksums. Reads no payload.

    Raises ImportError if no plugin makes dumps.
    """
    found: Document = _plugin().dump_document(
        reader, metadata_only=metadata_only, all=all
    )
    return found


def dump_text(
    reader: Reader,
    *,
    metadata_only: bool = False,
    all: bool = False,  # noqa: A002 - the word of `popef_dump --all`
) -> str:
    """Return everything that `reader` has read as tables. The text ends in a newline.

    Without `all`, long tables and values are cut and only the anchors of the main
    programs are shown.  Control characters in names are escaped.

    Raises ImportError if no plugin makes dumps.
    """
    return str(_plugin().dump_text(reader, metadata_only=metadata_only, all=all))


@cache
def _plugin() -> Any:
    # Device processes import this module and make no dumps.
    from importlib.metadata import entry_points

    for point in entry_points(group=DUMPS):
        return point.load()
    raise ImportError(
        "no installed plugin prints the contents of PopEF files (entry point group "
        f"{DUMPS})"
    )
