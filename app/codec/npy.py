"""A single numpy array as a body (``.npy``), read without numpy's own loader.

That loader can unpickle, and evaluates the header as Python. This module limits the
header and matches it against the grammar that writers use. Formats 1.0, 2.0 and 3.0 are
read. Big-endian and Fortran-ordered arrays are converted, which copies. Every other
array stays a view of the body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.codec.bounded_cache import remember
from app.codec.chunks import Chunks
from app.codec.inputs import Input
from app.codec.media import NPY_MAGIC
from app.codec.memory_check import reserve
from app.codec.messages import (
    Body,
    Encoding,
    InferRequest,
    Reply,
    Response,
    count_rows,
    new_request,
    sized_lines,
)
from app.codec.outputs import Output
from app.codec.shapes import Shape, count_elements
from app.errors import InvalidTensor, MalformedBody, NotRepresentable
from app.give_way import AT_ONCE, BLOCK, give_way
from app.limits import Limits
from app.sizes import counted
from app.spec import ModelSpec
from engine import Buffer, Tensor
from popef_io import DataType

_ALIGNMENT = 64
# Bytes that an element of an array of strings takes as an object, besides its own
# bytes.
_STRING = 100
_MAX_DIGITS = 18  # digits of a dimension: enough for any allowed shape
_ITEM = re.compile(
    rb"\s*['\"](descr|fortran_order|shape)['\"]\s*:\s*"
    rb"(?:['\"]([<>|=]?[A-Za-z?][0-9]{0,9})['\"]|(True|False)|\(([0-9,\s]*)\))\s*(,|\Z)"
)


class NpyHeader(NamedTuple):
    """Content of an array's header, and the offset of its data."""

    descr: str
    is_fortran: bool
    shape: Shape
    offset: int


_headers: dict[bytes, NpyHeader] = {}


def _malformed(why: str) -> MalformedBody:
    return MalformedBody(f"the body is not a valid .npy array: {why}")


def read_header(chunks: Chunks, limits: Limits) -> NpyHeader:
    """Return the header at the start of a body; `chunks` then holds the data."""
    if chunks.left < 10:
        raise _malformed(f"it ends within the header, at byte {chunks.left}")
    start = chunks.read_bytes(8)
    version = (start[6], start[7])
    if not start.startswith(NPY_MAGIC) or version not in ((1, 0), (2, 0), (3, 0)):
        raise _malformed(
            "expected \\x93NUMPY and version 1.0, 2.0 or 3.0, "
            f"got {start[:6]!r} and version {version[0]}.{version[1]}"
        )
    width = 2 if version == (1, 0) else 4
    if chunks.left < width:
        raise _malformed("it ends within the header")
    length = int.from_bytes(chunks.read_bytes(width), "little")
    if length > limits.max_npy_header_bytes:
        raise _malformed(
            f"its header has {length} bytes; "
            f"at most {limits.max_npy_header_bytes} are allowed"
        )
    if length > chunks.left:
        raise _malformed(
            f"its header states {counted(length, 'byte')}, but {chunks.left} follow"
        )
    text = chunks.read_bytes(length)
    found = _headers.get(text)
    if found is None:
        found = remember(_headers, text, _parse_header(text, 8 + width + length))
    return found


def _parse_header(text: bytes, offset: int) -> NpyHeader:
    inner = text.strip()
    if not (inner.startswith(b"{") and inner.endswith(b"}")):
        raise _malformed(f"expected a header in braces, got {text[:80]!r}")
    inner = inner[1:-1].strip()
    items: dict[bytes, tuple[bytes | None, ...]] = {}
    position = 0
    while position < len(inner):
        match = _ITEM.match(inner, position)
        if match is None or match[1] in items:
            raise _malformed(f"header not understood at {inner[position:][:80]!r}")
        items[match[1]] = (match[2], match[3], match[4])
        position = match.end()
    none = (None, None, None)
    descr = items.get(b"descr", none)[0]
    order = items.get(b"fortran_order", none)[1]
    dims = items.get(b"shape", none)[2]
    if descr is None or order is None or dims is None:
        raise _malformed(f"expected descr, fortran_order and shape, got {text[:80]!r}")
    return NpyHeader(descr.decode(), order == b"True", _parse_dims(dims), offset)


def _parse_dims(text: bytes) -> Shape:
    words = [word.strip() for word in text.split(b",")]
    if words[-1] == b"":
        words.pop()
    if not all(word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        raise _malformed(f"shape not understood: ({text[:80].decode()})")
    return tuple(map(int, words))


def is_rearranged(first: bytes) -> bool:
    """Return whether an array with these first bytes may have to be rearranged."""
    width = 2 if first[6:7] == b"\1" else 4
    end = 8 + width + int.from_bytes(first[8 : 8 + width], "little")
    return end > len(first) or b"True" in first[:end] or b">" in first[:end]


def decode_npy(
    spec: ModelSpec, inputs: dict[str, Input], limits: Limits, body: Body, reply: Reply
) -> InferRequest:
    """Return the request of a body that is the array for a model's only input.

    Raises MalformedBody or InvalidTensor.
    """
    if len(inputs) != 1:
        msg = (
            f"an .npy body needs a model with one input; '{spec.name}' has "
            f"{len(inputs)}: {list(inputs)}"
        )
        raise InvalidTensor(msg)
    (model_input,) = inputs.values()
    request = new_request(reply)
    request.inputs[model_input.name] = read_array(spec, limits, model_input, body)
    if spec.is_batched:
        count_rows(request, spec)
    return request


def read_array(
    spec: ModelSpec, limits: Limits, model_input: Input, body: Body
) -> Tensor:
    """Return the tensor of an array for one input of a model.

    Raises MalformedBody or InvalidTensor.
    """
    chunks = Chunks(body, sum(map(len, body)))
    header = read_header(chunks, limits)
    dtype = _dtype(header.descr)
    _check_dtype(spec, model_input, dtype, header.descr)
    if len(header.shape) > limits.max_rank:
        msg = (
            f"the array has {len(header.shape)} dimensions; "
            f"at most {limits.max_rank} are allowed"
        )
        raise InvalidTensor(msg)
    count = count_elements(model_input.name, header.shape, limits)
    expected, left = count * dtype.itemsize, chunks.left
    if left != expected:
        raise _malformed(
            f"shape {header.shape} of {header.descr} takes "
            f"{counted(expected, 'byte')}, but {left} follow the header"
        )
    accepted = model_input.accept_parsed(header.shape)
    is_text = dtype.kind in "SU"
    if not is_text and not header.is_fortran and dtype.isnative:
        return model_input.from_bytes(chunks.read(left), left, accepted)
    array = chunks.read_array(left).view(dtype)
    # Fortran order needs one copy, the other byte order another. Strings need their
    # objects.
    reserve(left * (header.is_fortran + (not is_text and not dtype.isnative)))
    reserve(_STRING * count if is_text else 0)
    if header.is_fortran:
        array = array.reshape(header.shape[::-1]).T.reshape(-1)
    if is_text:
        return model_input.from_texts(array.tolist(), accepted)
    native = np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False))
    return model_input.from_bytes((native.view(np.uint8).data,), left, accepted)


def _dtype(descr: str) -> np.dtype[np.generic]:
    try:
        return np.dtype(descr)
    except TypeError:
        raise _malformed(f"element type '{descr}' is not supported") from None


def _check_dtype(
    spec: ModelSpec, model_input: Input, dtype: np.dtype[np.generic], descr: str
) -> None:
    """Check that the numpy type of an array is the tensor's, in either byte order.

    BF16, which numpy does not have, is two bytes without a type (``V2``), as the
    package ml_dtypes saves it.
    """
    wanted = model_input.data_type
    if wanted is DataType.STRING:
        fits = dtype.kind in "SU" and dtype.itemsize > 0
    elif wanted is DataType.BF16:
        fits = dtype.kind == "V" and dtype.itemsize == 2
    else:
        fits = dtype.newbyteorder("<") == wanted.numpy_dtype.newbyteorder("<")
    if not fits:
        msg = (
            f"inference input '{model_input.name}' data-type is "
            f"'{_name(dtype, descr)}', but model '{spec.name}' "
            f"expects '{model_input.datatype}'"
        )
        raise InvalidTensor(msg)


def _name(dtype: np.dtype[np.generic], descr: str) -> str:
    kinds = {"f": "FP", "i": "INT", "u": "UINT"}
    if dtype.kind in kinds:
        return f"{kinds[dtype.kind]}{dtype.itemsize * 8}"
    return {"b": "BOOL", "S": "BYTES", "U": "BYTES"}.get(dtype.kind, descr)


def encode_npy(output: Output, tensor: Tensor) -> Response:
    """Return a response with one output as an array, without copying its data.

    Raises NotRepresentable for strings that numpy's fixed-width type would change.
    """
    if output.kind == "s":
        array = _string_array(output, tensor)
        descr = array.dtype.str
        parts: Sequence[Buffer] = (array.tobytes(),)
        size = array.nbytes
    else:
        bf16 = output.data_type is DataType.BF16
        descr = "<V2" if bf16 else output.dtype.str
        parts, size = tensor.parts, tensor.nbytes
    head = write_header(descr, tensor.shape)
    total = len(head) + size
    lines = sized_lines(Encoding.NPY.value, total)
    return Response(200, lines, [head, *parts], total)


def write_header(descr: str, shape: Shape) -> bytes:
    """Return the header of a format 1.0 array, padded so that the data is aligned to
    64.
    """
    dims = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}"
    padding = -(len(NPY_MAGIC) + 4 + len(text) + 1) % _ALIGNMENT
    body = text.encode() + b" " * padding + b"\n"
    return NPY_MAGIC + b"\x01\x00" + len(body).to_bytes(2, "little") + body


def _string_array(output: Output, tensor: Tensor) -> npt.NDArray[np.bytes_]:
    elements = output.strings(tensor, as_text=False)
    width, is_cut = 1, False
    for start in range(0, len(elements), BLOCK):
        block = elements[start : start + BLOCK]
        width = max(width, *map(len, block))
        is_cut = is_cut or any(element.endswith(b"\0") for element in block)
        if tensor.nbytes > AT_ONCE:
            give_way()
    if is_cut:
        msg = (
            f"output '{output.name}' has strings that end in a zero byte, which .npy "
            "cannot hold; request JSON, msgpack or binary"
        )
        raise NotRepresentable(msg)
    if width * len(elements) > 4 * tensor.nbytes + 65536:
        msg = (
            f"output '{output.name}' has strings of very different lengths, which "
            ".npy pads to the longest; request JSON, msgpack or binary"
        )
        raise NotRepresentable(msg)
    array = np.empty(len(elements), dtype=f"S{width}")
    for start in range(0, len(elements), BLOCK):
        array[start : start + BLOCK] = elements[start : start + BLOCK]
        if tensor.nbytes > AT_ONCE:
            give_way()
    return array.reshape(tensor.shape)
