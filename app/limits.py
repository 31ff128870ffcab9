"""Limits of a request, checked before memory is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MIB = 1 << 20
#: A list of a document counts as this many values: even an empty one takes memory.
LIST_WEIGHT = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one inference request. All sizes are in bytes.

    They limit the cost of one request. The shapes of its model are checked as well.
    Exceeding `max_body_bytes` or `max_json_bytes` is answered with 413, everything else
    with 400.
    """

    max_body_bytes: int = 256 * MIB
    """Whole body, on the wire and after decompression.

    256 MiB carries a batch of 445 float32 images of 3x224x224 and is still a size that
    64 clients may send at once to a machine with 16 GiB. The check uses Content-Length
    before a byte of the body is read, and counts if there is none.
    """

    max_json_bytes: int = 64 * MIB
    """JSON, without the binary tensors behind it: of a request, and of each output.

    Parsed numbers take up to 16 times the bytes of their text, so documents have a
    smaller bound than bodies whose tensors are binary.
    """

    max_document_values: int = 16 * MIB
    """Values in all lists of a document. Parsed, they take up to 32 bytes each; a
    string of a large JSON document counts as three."""

    max_document_keys: int = 1 << 16
    """Keys in all objects of a document, if there are more than requests have, and
    in one map of a msgpack document."""

    max_json_depth: int = 100
    """Nesting of lists and objects in a document."""

    max_inputs: int = 1024
    """Inputs, and requested outputs, in one request."""

    max_rank: int = 32
    """Dimensions of a tensor."""

    max_elements: int = 2**31
    """Elements of a tensor, and the size of any one dimension."""

    max_empty_rows: int = 1 << 16
    """Rows of a tensor without elements. They have no bytes but take time."""

    max_string_bytes: int = 64 * MIB
    """One element of a BYTES tensor."""

    max_strings: int = 1 << 20
    """Elements of a BYTES tensor, in a request and where an answer writes them one by
    one. Each takes an object, up to 75 times its bytes."""

    max_form_parts: int = 1024
    """Parts of a form (`multipart/form-data`)."""

    max_npy_header_bytes: int = 10_000
    """Header of an .npy body: the bound that numpy itself uses."""


DEFAULT_LIMITS = Limits()


class Total(Protocol):
    """A number that the processes of a server have together."""

    def publish(self, part: int) -> int:
        """Set this process's part; return the total."""
