"""Tensors: parts are never joined unasked, strings and empty tensors survive."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import DataDesc, Tensor
from popef_io import DataType, PopefError, encode_strings

PLAIN = [t for t in DataType if t.item_size]


@pytest.mark.parametrize("data_type", PLAIN)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 0, 3), (2, 3, 4)])
def test_numpy_round_trip(data_type: DataType, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=int))
    array = (np.arange(count) % 2).reshape(shape).astype(data_type.numpy_dtype)
    tensor = Tensor.from_numpy(array, data_type)
    assert tensor.shape == shape
    assert tensor.nbytes == array.nbytes == len(tensor.tobytes())
    back = tensor.numpy()
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_parts_are_joined_only_when_asked() -> None:
    raw = np.arange(6, dtype=np.float32).tobytes()
    tensor = Tensor(DataType.F32, (2, 3), (raw[:5], raw[5:6], raw[6:]))
    assert tensor.nbytes == 24
    assert np.array_equal(tensor.numpy(), np.arange(6, dtype="f4").reshape(2, 3))
    single = Tensor(DataType.F32, (6,), (raw,))
    assert np.shares_memory(single.numpy(), np.frombuffer(raw, np.float32))


def test_an_array_that_is_not_contiguous_is_copied() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T
    assert np.array_equal(Tensor.from_numpy(array).numpy(), array)


def test_strings_of_all_kinds() -> None:
    words = np.array([["", "ä"], [b"\xff\x00", "x" * 300]], dtype=object)
    tensor = Tensor.from_numpy(words)
    assert tensor.data_type is DataType.STRING
    back = tensor.numpy()
    assert back.tolist() == [[b"", "ä".encode()], [b"\xff\x00", b"x" * 300]]
    assert "STRING[2,2]" in repr(tensor)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"\x01\x00\x00", 1),
        (b"\x05\x00\x00\x00ab", 1),
        (b"\xff\xff\xff\xffab", 1),
        (encode_strings(["a"]), 2),
        (encode_strings(["a", "b"]), 1),
    ],
)
def test_damaged_strings_are_refused(data: bytes, count: int) -> None:
    with pytest.raises(PopefError):
        Tensor(DataType.STRING, (count,), (data,)).numpy()


def test_descriptors_know_which_shapes_fit() -> None:
    desc = DataDesc("x", (-1, 3), DataType.F32)
    assert desc.accepts_shape((7, 3))
    assert desc.accepts_shape((0, 3))
    assert not desc.accepts_shape((7, 4))
    assert not desc.accepts_shape((3,))
    assert desc.size_in_bytes == -1
    assert DataDesc("x", None, DataType.F32).accepts_shape((1, 2, 3))
    assert DataDesc("x", (2, 3), DataType.F16).size_in_bytes == 12
    assert desc.numpy_data_type() == np.float32


AGAIN = pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))],
    ids=["copy", "deepcopy", "pickle"],
)


@AGAIN
@pytest.mark.parametrize(
    "array", [np.ones((2, 3)), np.zeros((0, 3)), np.array([[b"a", b"bc"]], object)]
)
def test_tensors_can_be_copied(
    again: Callable[[Tensor], Tensor], array: np.ndarray[tuple[int, ...], np.dtype[Any]]
) -> None:
    tensor = Tensor.from_numpy(array)
    copied = again(tensor)
    assert repr(copied) == repr(tensor)
    assert (copied.numpy() == array).all()
    parts = Tensor(DataType.U8, (3,), (b"a", memoryview(b"bc")))
    assert again(parts).tobytes() == b"abc"


@AGAIN
def test_descriptors_can_be_copied(again: Callable[[object], object]) -> None:
    desc = DataDesc("x", (-1, 4), DataType.F32, multiple=2)
    assert again(desc) == desc
