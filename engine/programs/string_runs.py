"""Run graphs that have strings.

`InferenceSession.run` makes its tensors of strings from Python's objects, and objects
from its tensors, with the interpreter's lock: 150 ms for a million. So many strings go
in as one text, which a graph of our own splits, and come out in parts, which another
graph makes. ONNX Runtime runs both without the lock, and other threads run between two
blocks of strings.

A tensor of strings can come from a graph only. So the text is a constant of a session
that lives for one call. Loading that takes a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from engine.arrays import free_strings
from engine.errors import ExecutionFailed
from engine.programs.session import RunOptions
from engine.tensor import Array
from engine.thread_priority import give_way

#: Elements of the largest input from which this pays.
MANY: Final = 16_384
#: Elements converted at a time, in half a millisecond at most.
_BLOCK: Final = 4_096
#: Outputs of the graph that takes a tensor apart. All parts but the last have the same
#: size, rounded up, so more parts of `MANY` elements could leave none for the last.
_PARTS: Final = math.isqrt(MANY)
#: UTF-8 has no such byte.
_BETWEEN: Final = b"\xff"
#: Bytes of text. A model in protobuf has at most 2 GiB.
_LONGEST: Final = 1 << 30
#: Memory of this process.
CPU: Final = ort_state.OrtDevice(
    ort_state.OrtDevice.cpu(), ort_state.OrtDevice.default_memory(), 0
)
_STRING, _INT64 = 8, 7  # TensorProto.DataType


def run_strings(
    session: Any, names: Sequence[str], feed: dict[str, Array], options: RunOptions
) -> list[Array]:
    """Run ONNX Runtime's `session` on `feed`. Return the outputs `names`.

    The strings of `feed` are `bytes` or `str`, those of the outputs are `str`. If there
    are many strings, `feed` is empty afterwards. Raises ExecutionFailed if a string is
    not UTF-8, and ONNX Runtime's own exceptions.
    """
    if all(array.size < MANY for array in feed.values()):
        return _run_few(session, names, feed, options)
    plain: list[Array] = []
    values = _values_of(feed, plain)
    if values is None:
        return _run_few(session, names, feed, options)
    free_strings(feed)
    results = session.run_with_ort_values(values, names, options)
    plain.clear()  # not before, and also if compiled, which ends lives early
    return [_array_of(results[index]) for index in range(len(names))]


def _values_of(feed: dict[str, Array], plain: list[Array]) -> dict[str, Any] | None:
    """Return ONNX Runtime's values of `feed`; None if one is too long.

    `plain` receives the arrays whose memory values use.
    """
    values = {}
    for name, array in feed.items():
        if array.dtype.hasobject:
            value = _value_of(array, name)
            if value is None:
                return None
        else:
            plain.append(np.ascontiguousarray(array).reshape(array.shape))
            value = ort_state.OrtValue.ortvalue_from_numpy(plain[-1], CPU)
        values[name] = value
    return values


def _run_few(
    session: Any, names: Sequence[str], feed: dict[str, Array], options: RunOptions
) -> list[Array]:
    texts = {k: _as_text(v, k) if v.dtype.hasobject else v for k, v in feed.items()}
    results: list[Array] = session.run(names, texts, options)
    return results


def _as_text(array: Array, name: str) -> Array:
    """Return an array of `str`, because ONNX Runtime's `run` accepts no other strings.

    `name` is the input of the graph.
    """
    result = np.empty(array.size, dtype=object)
    try:
        result[:] = [
            item if isinstance(item, str) else bytes(item).decode()
            for item in array.reshape(-1).tolist()
        ]
    except UnicodeDecodeError as error:
        raise ExecutionFailed(
            f"a string of input {name!r} is not UTF-8: {error.reason} at byte "
            f"{error.start}",
            callers_fault=True,
        ) from None
    return result.reshape(array.shape)


def _value_of(array: Array, name: str) -> Any:
    """Return ONNX Runtime's value of an array of strings; None if it is too long."""
    flat = array.reshape(-1)
    is_one_text = flat.size > _BLOCK
    if is_one_text:
        blocks = (flat[begin : begin + _BLOCK] for begin in range(0, flat.size, _BLOCK))
        texts = [_BETWEEN.join(_bytes_of(block, name)) for block in blocks]
        items = [_BETWEEN.join(texts)]
    else:
        items = _bytes_of(flat, name)
    if sum(map(len, items)) > _LONGEST:
        return None
    shape = np.array(array.shape, np.int64)
    feed = {"shape": ort_state.OrtValue.ortvalue_from_numpy(shape, CPU)}
    session = _session(_maker(items, is_one_text))
    return session.run_with_ort_values(feed, ["strings"], None)[0]


def _bytes_of(block: Array, name: str) -> list[bytes]:
    items: list[bytes] = block.tolist()
    try:
        # Zero bytes are UTF-8, and no string can end in the next one.
        b"\0".join(items).decode()
    except (TypeError, UnicodeDecodeError):  # some are `str`, or one is not UTF-8
        return [item.encode() for item in _as_text(block, name).tolist()]
    return items


def _array_of(value: Any) -> Array:
    """Return the array of an output."""
    shape = tuple(value.shape())
    size = math.prod(shape)
    if value.data_type() != "tensor(string)" or size < MANY:
        array: Array = value.numpy()
        return array
    parts = _parter().run_with_ort_values({"strings": value}, _PART_NAMES, None)
    flat = np.empty(size, dtype=object)
    begin = 0
    for index in range(_PARTS):
        part = parts[index].numpy()[0]
        flat[begin : begin + part.size] = part
        begin += part.size
        give_way()
    return flat.reshape(shape)


def _session(model: bytes) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # which would keep the memory of the largest
    # Or ONNX Runtime would run the graph while it loads it, with the lock.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options)._sess


def _maker(items: Sequence[bytes], is_one_text: bool) -> bytes:
    """Return the model that gives `items` the shape of its input.

    If `is_one_text`, the model splits the only item into the strings.
    """
    strings = b"".join(_field(6, item) for item in items)
    constant = _field(1, len(items)) + _field(2, _STRING) + strings + _field(8, b"text")
    split = _node(b"StringSplit", [b"text"], [b"row", b"n"], delimiter=_BETWEEN)
    row = b"row" if is_one_text else b"text"
    return _model(
        split if is_one_text else b"",
        _node(b"Reshape", [row, b"shape"], [b"strings"], allowzero=1),
        _field(5, constant),
        _field(11, _value(b"shape", _INT64)),
        _field(12, _value(b"strings", _STRING)),
    )


@cache
def _parter() -> Any:
    """Return the session that takes `strings` apart, into parts of about one size."""
    names = [name.encode() for name in _PART_NAMES]
    return _session(
        _model(
            _node(b"Flatten", [b"strings"], [b"row"], axis=0),
            _node(b"Split", [b"row"], names, axis=1, num_outputs=_PARTS),
            _field(11, _value(b"strings", _STRING)),
            *(_field(12, _value(name, _STRING)) for name in names),
        )
    )


_PART_NAMES: Final = [f"part{index}" for index in range(_PARTS)]


# Messages in protobuf, with the numbers of fields of onnx.proto.


def _model(*graph: bytes) -> bytes:
    opset = _field(2, 20)
    return _field(1, 9) + _field(8, opset) + _field(7, b"".join(graph))


def _node(
    op: bytes,
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    **attributes: bytes | int,
) -> bytes:
    """Return a field of a graph."""
    body = [_field(1, name) for name in inputs]
    body += [_field(2, name) for name in outputs]
    body.append(_field(4, op))
    for name, value in attributes.items():
        number, kind = (3, 2) if isinstance(value, int) else (4, 3)
        attribute = _field(1, name.encode()) + _field(number, value) + _field(20, kind)
        body.append(_field(5, attribute))
    return _field(1, b"".join(body))


def _value(name: bytes, element: int) -> bytes:
    """Return the description of a tensor of any shape."""
    return _field(1, name) + _field(2, _field(1, _field(1, element)))


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _packed(number << 3) + _packed(value)
    return b"".join((_packed(number << 3 | 2), _packed(len(value)), value))


def _packed(value: int) -> bytes:
    """Return a number in protobuf's form, seven bits in each byte."""
    packed = bytearray()
    while value > 127:
        packed.append(value & 127 | 128)
        value >>= 7
    packed.append(value)
    return bytes(packed)
