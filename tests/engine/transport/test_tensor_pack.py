"""Tensors through a segment, of every kind and any number."""

from __future__ import annotations

import numpy as np
import pytest

from engine import Array, EngineBug, Tensor
from engine.transport.tensor_pack import pack_tensors, unpack_tensors
from popef_io import DataType


def test_what_is_packed_is_unpacked() -> None:
    arrays: dict[str, Array] = {
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 3), np.float16),
        "text": np.array([b"a", b"\xff", b""], object),
        "rows": np.arange(30, dtype=np.float32).reshape(5, 6)[:, ::2],
    }
    arrays |= {f"weight {n}": np.full(3, n, np.uint16) for n in range(5000)}
    tensors = {name: Tensor.from_numpy(array) for name, array in arrays.items()}
    tensors["bf16"] = Tensor.from_numpy(np.arange(4, dtype=np.uint16), DataType.BF16)
    place, memory = pack_tensors("test", tensors)
    with memory:
        got = unpack_tensors(place, memory.fd)
    assert list(got) == list(tensors)
    assert got["bf16"].data_type is DataType.BF16
    for name, array in arrays.items():
        assert np.array_equal(got[name].numpy(), array), name
        assert got[name].shape == array.shape


def test_a_table_outside_of_the_segment_is_refused() -> None:
    _, memory = pack_tensors("test", {})
    with memory, pytest.raises(EngineBug, match="no table"):
        unpack_tensors([0, memory.size + 1], memory.fd)
