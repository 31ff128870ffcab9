"""The Open Inference Protocol's document in msgpack, with tensors as bytes.

Requests are the JSON document written in msgpack. `data` is a list as in JSON, or the
tensor's bytes. Bytes are little endian and row-major, and each BYTES element follows
its 4-byte length. Responses hold bytes, a list of byte strings for BYTES, and lists of
numbers only for outputs that the request wants without `binary_data`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from app.codec.bounded_cache import remember
from app.codec.chunks import in_parts
from app.codec.memory_check import reserve
from app.codec.messages import Encoding, InferRequest, Response, sized_lines
from app.codec.outputs import Output, strings_of
from app.errors import (
    InvalidRequest,
    MalformedBody,
    NestedTooDeep,
    NotRepresentable,
    too_many_strings,
    too_many_values,
)
from app.give_way import AT_ONCE, BLOCK, give_way, in_blocks
from app.limits import LIST_WEIGHT, Limits
from app.regions import HeldRegions
from app.sizes import counted
from app.spec import ModelSpec
from engine import Buffer, Tensor

# The parser allocates a list by its claimed length before it reads the elements. Up to
# this length that is harmless at any nesting. Documents with longer lists or maps are
# first walked without building.
_TRUSTED = {"max_array_len": 4096, "max_map_len": 4096}
# In documents of up to this size, values are not counted: their memory stays small.
_LARGE = 1 << 18
# Bytes of one block for an unpacker, of the largest block (for a long string), and of a
# long string that are copied before other threads run.
_FED, _FED_AT_MOST, _COPIED = 16 * 1024, AT_ONCE, 8 * AT_ONCE
# Bytes of a number or of a short string in a list.
_OBJECT = 32
# The fewest bytes of a value that is not copied, the most values that are passed when
# such values are searched for, and what stands for one: an extension of 4 bytes.
_LONG, _PASSED, _PLACE = 1 << 16, 4096, b"\xd6\0"
_pack: Callable[[Any], bytes] = msgpack.packb


def _steps() -> tuple[bytes, bytes]:
    """Return two tables by the first byte of a value. The first has the value's size in
    bytes, without the elements of a list or map. The second has the bytes of its
    length, if any.
    """
    steps, widths = bytearray([1] * 256), bytearray(256)
    for length in range(32):
        steps[0xA0 + length] = 1 + length
    sizes = {1: b"\xcc\xd0", 2: b"\xcd\xd1\xdc\xde", 8: b"\xcb\xcf\xd3"}
    sizes[4] = b"\xca\xce\xd2\xdd\xdf"
    for size, heads in sizes.items():
        for head in heads:
            steps[head] = 1 + size
    for width, heads in {1: b"\xc4\xd9", 2: b"\xc5\xda", 4: b"\xc6\xdb"}.items():
        for head in heads:
            steps[head], widths[head] = 1 + width, width
    return bytes(steps), bytes(widths)


_STEPS, _WIDTHS = _steps()
_STRINGS = frozenset([*range(0xA0, 0xC0), *range(0xC4, 0xC7), *range(0xD9, 0xDC)])
_EXTENSIONS = frozenset([*range(0xC7, 0xCA), *range(0xD4, 0xD9)])


def _no_extension(code: int, data: bytes) -> Any:
    msg = f"extension type {code} ({len(data)} bytes) is not allowed in a request"
    raise InvalidRequest(msg)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[Any] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(f"key {key!r:.80} occurs twice in one map")
            seen.add(key)
    return found


def parse_msgpack(data: Buffer, limits: Limits) -> Any:
    """Return the value of a msgpack body. Raises MalformedBody or InvalidRequest if it
    is invalid.

    Extension types, including timestamps, are refused, and only plain objects are
    built. Keys are strings. In a large body, long bytes are views of it.
    """
    try:
        if len(data) > _LARGE and (found := _with_views(data)) is not None:
            return found
        if len(data) <= _LARGE:
            try:
                return msgpack.unpackb(data, **_TRUSTED, **_STRICT)
            except ValueError as error:
                if "max_array_len" not in str(error) and "max_map_len" not in str(
                    error
                ):
                    raise
        return _parse_long(data, limits)
    except msgpack.ExtraData as error:
        raise _malformed(
            f"{counted(len(error.extra), 'byte')} too many at its end"
        ) from None
    except msgpack.StackError:
        raise NestedTooDeep(limits.max_json_depth) from None
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _malformed(str(error) or "it ends too early") from None


def _with_views(data: Buffer) -> Any:
    """Return the value of a document that is small without its long bytes, which are
    views. Return None for all others, and for those that the parser refuses.
    """
    view, end = memoryview(data), len(data)
    pieces: list[Buffer] = []
    views: list[memoryview] = []
    at = start = 0
    for _ in range(_PASSED):
        if at >= end:
            break
        head = data[at]
        if head in _EXTENSIONS:
            return None
        width, first = _WIDTHS[head], at
        at += _STEPS[head]
        if width:
            at += (size := int.from_bytes(data[at - width : at], "big"))
            if head == 0xC6 and size >= _LONG:
                pieces += (view[start:first], _PLACE, struct.pack(">I", len(views)))
                views.append(view[at - size : at])
                start = at
    pieces.append(view[start:])
    if at != end or not views or sum(map(len, pieces)) > _LARGE:
        return None

    def view_of(code: int, place: bytes) -> memoryview:
        return views[int.from_bytes(place, "big")]

    known = {**_TRUSTED, **_STRICT, "ext_hook": view_of, "max_ext_len": 4}
    try:
        return msgpack.unpackb(b"".join(pieces), **known)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def _parse_long(data: Buffer, limits: Limits) -> Any:
    """Parse a document with long lists like `parse_msgpack`, block by block.

    The first walk builds nothing, so a list that claims more elements than there are
    bytes fails before any allocation. The second walk counts the objects that it
    builds. A list that alone could have too many strings is checked before it is built.
    """
    reserve(len(data))  # for the copy that each unpacker makes in turn
    walker = msgpack.Unpacker(max_buffer_size=len(data), read_size=len(data))
    _feed(walker, walker.skip, data)
    del walker  # and its copy of the document
    longest = min(len(data), limits.max_document_values)
    trusted = min(longest, limits.max_strings + limits.max_document_keys)
    try:
        return _build(data, limits, trusted)
    except ValueError as error:
        if trusted == longest or "max_array_len" not in str(error):
            raise
    _check_strings(data, limits)
    return _build(data, limits, longest)


def _build(data: Buffer, limits: Limits, longest: int) -> Any:
    """Return the value of a document without lists of more than `longest` elements."""
    left = limits.max_document_values
    strings = limits.max_strings + limits.max_document_keys
    # Room for the list that is being read, and for the bytes that it holds.
    room = _OBJECT * min(len(data), longest) + len(data)
    reserve(room)

    def count(values: list[Any]) -> list[Any]:
        nonlocal left, strings, room
        left -= len(values) + LIST_WEIGHT
        if left < 0:
            raise too_many_values(limits.max_document_values, LIST_WEIGHT)
        room -= _OBJECT * len(values)
        if room < 0:
            reserve(_OBJECT * len(values))
        for block in in_blocks(values):
            types = list(map(type, block))
            strings -= types.count(str) + types.count(bytes)
        if strings < 0:
            raise too_many_strings(limits.max_strings)
        return values

    def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        nonlocal left
        left -= len(pairs) + LIST_WEIGHT
        if left < 0:
            raise too_many_values(limits.max_document_values, LIST_WEIGHT)
        return _unique(pairs)

    keys = min(len(data), limits.max_document_keys)
    hooks = {**_STRICT, "list_hook": count, "object_pairs_hook": unique}
    builder = msgpack.Unpacker(
        max_buffer_size=len(data),
        read_size=len(data),
        max_array_len=longest,
        max_map_len=keys,
        **hooks,
    )
    try:
        value = _feed(builder, builder.unpack, data)
    except ValueError as error:
        if "max_map_len" not in str(error):
            raise
        msg = f"a map of the document has more than {keys} keys"
        raise InvalidRequest(msg) from None
    rest = len(data) - builder.tell()
    if rest:
        raise _malformed(f"{counted(rest, 'byte')} too many at its end")
    return value


def _feed(unpacker: Any, read: Callable[[], Any], data: Buffer) -> Any:
    """Return the result of `read` for a document that the unpacker receives in blocks.

    If no element ends in a block, the block belongs to a long string, and the next
    block is larger. Raises msgpack.OutOfData if the document ends too early.
    """
    view, size = memoryview(data), len(data)
    step, start, reached, since = _FED, 0, 0, 0
    while True:
        unpacker.feed(view[start : start + step])
        start += step
        since += step
        try:
            return read()
        except msgpack.OutOfData:
            if start >= size:
                raise
        now = unpacker.tell()
        has_moved, reached = now != reached, now
        step = _FED if has_moved else min(2 * step, _FED_AT_MOST)
        if has_moved or since >= _COPIED:
            since = 0
            give_way()


def _check_strings(data: Buffer, limits: Limits) -> None:
    """Refuse a document with too many strings without building any.

    The document has been walked, so it is complete. Bytes after an extension type may
    be miscounted, but no document with one is built.
    """
    at, end = 0, len(data)
    left = limits.max_strings + limits.max_document_keys
    tokens = 0
    while at < end:
        head = data[at]
        width = _WIDTHS[head]
        at += _STEPS[head]
        if width:
            at += int.from_bytes(data[at - width : at], "big")
        if head in _STRINGS:
            left -= 1
            if left < 0:
                raise too_many_strings(limits.max_strings)
        tokens += 1
        if tokens % BLOCK == 0:
            give_way()


_STRICT: dict[str, Any] = {
    "object_pairs_hook": _unique,
    "ext_hook": _no_extension,
    "max_ext_len": 0,
}


def _malformed(why: str) -> MalformedBody:
    return MalformedBody(f"failed to parse the request msgpack buffer: {why}")


def is_mostly_bytes(first: bytes, size: int) -> bool:
    """Return whether one of the first 256 values of a body are bytes, most of its
    `size`.

    Such a body is decoded at the speed of memory. `first` are its first bytes.
    """
    at = 0
    for _ in range(256):
        if at >= len(first):
            break
        head, width = first[at], _WIDTHS[first[at]]
        at += _STEPS[head]
        if width:
            at += (length := int.from_bytes(first[at - width : at], "big"))
            if head <= 0xC6 and 2 * length > size:
                return True
    return False


class MsgpackWriter:
    """Writes the msgpack responses of one model, with tensors as bytes."""

    __slots__ = ("_all", "_heads", "_model", "_outputs", "_prefixes")

    def __init__(self, spec: ModelSpec, outputs: dict[str, Output]) -> None:
        self._outputs = outputs
        self._all = tuple(outputs)
        self._model = b"".join(
            _pack(item)
            for item in (
                *("model_name", spec.name),
                *("model_version", spec.version),
                "outputs",
            )
        )
        self._heads: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._prefixes = {
            output.name: b"\x84"  # a map of four: name, datatype, shape, data
            + _pack("name")
            + _pack(output.name)
            + _pack("datatype")
            + _pack(output.datatype)
            + _pack("shape")
            for output in spec.outputs
        }

    def encode(self, request: InferRequest, tensors: Mapping[str, Tensor]) -> Response:
        """Return the response to `request`."""
        names = request.outputs or self._all
        if request.id is None:
            pieces: list[Buffer] = [b"\x83", self._model]
        else:
            pieces = [b"\x84", _pack("id"), _pack(request.id), self._model]
        pieces.append(_array_header(len(names)))
        by_name = request.binary_by_name or {}
        held = request.held
        for name in names:
            tensor = tensors[name]
            pieces.append(self._head(name, tensor.shape))
            output = self._outputs[name]
            if held is not None and name in held:
                pieces[-1] = self._placed(name, tensor, held)
            elif output.kind != "s" and by_name.get(name, request.binary):
                pieces.append(_bin_header(tensor.nbytes))
                pieces += tensor.parts
            elif tensor.nbytes > AT_ONCE:
                pieces += _long_list(output, tensor)
            elif output.kind == "s":
                pieces.append(_pack(strings_of(tensor)))
            else:
                pieces.append(_pack(output.values(output.array(tensor)).tolist()))
        total = sum(map(len, pieces))
        lines = sized_lines(Encoding.MSGPACK.value, total)
        return Response(200, lines, in_parts(pieces, total), total)

    def _head(self, name: str, shape: tuple[int, ...]) -> bytes:
        """Return the map of an output up to its data.

        It is kept, because packing costs 3 us.
        """
        key = (name, shape)
        found = self._heads.get(key)
        if found is None:
            found = self._prefixes[name] + _pack(shape) + b"\xa4data"
            remember(self._heads, key, found)
        return found

    def _placed(self, name: str, tensor: Tensor, held: HeldRegions) -> bytes:
        """Return the map of an output that goes to shared memory."""
        place = _pack({"parameters": held.put(name, tensor)})
        return self._prefixes[name] + _pack(tensor.shape) + place[1:]

    def __repr__(self) -> str:
        return f"<MsgpackWriter outputs={list(self._all)}>"


def _long_list(output: Output, tensor: Tensor) -> list[bytes]:
    """Return the list of a large output, for the threads of large bodies."""
    if output.kind == "s":
        strings = output.strings(tensor, as_text=False)
        starts = range(0, len(strings), BLOCK)
        blocks = [_without_header(strings[at : at + BLOCK]) for at in starts]
        return [_array_header(len(strings)), *blocks]
    array = output.values(output.array(tensor))
    output.check_text(array.size)
    pieces = [_array_header(array.size)]
    size = 0
    for start in range(0, array.size, BLOCK):
        piece = _without_header(array[start : start + BLOCK].tolist())
        size += len(piece)
        output.check_text(size)
        pieces.append(piece)
    return pieces


def _without_header(block: list[Any]) -> bytes:
    give_way()
    return _pack(block)[1 if len(block) < 1 << 4 else 3 :]


def _array_header(count: int) -> bytes:
    if count < 1 << 4:
        return bytes((0x90 | count,))
    return struct.pack(">BI", 0xDD, count)


def _bin_header(size: int) -> bytes:
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    if size < 1 << 16:
        return struct.pack(">BH", 0xC5, size)
    if size < 1 << 32:
        return struct.pack(">BI", 0xC6, size)
    msg = f"msgpack cannot hold an output of {size} bytes; request binary data"
    raise NotRepresentable(msg)
