from __future__ import annotations

import numpy as np
import pytest

from popef_io import BlobType, DataType, InvalidValueError, TensorType


def test_order_is_that_of_popef() -> None:
    assert [member.value for member in BlobType] == [0, 1, 2, 3, 4]
    assert [member.name for member in TensorType] == ["UNKNOWN", "INPUT", "OUTPUT"]
    names = "BOOL F8 F16 F32 F64 S8 U8 S16 U16 S32 U32 S64 U64 F8143 F8152"
    documented = [member for member in DataType if member.value < 64]
    assert [member.name for member in documented] == names.split()
    assert [member.value for member in documented] == list(range(15))


@pytest.mark.parametrize("data_type", DataType)
def test_item_size_is_numpys(data_type: DataType) -> None:
    if data_type is DataType.STRING:
        assert data_type.item_size == 0
        assert data_type.numpy_dtype == np.dtype(object)
    else:
        assert data_type.item_size == data_type.numpy_dtype.itemsize
    assert DataType(data_type.value) is data_type


@pytest.mark.parametrize("data_type", DataType)
def test_from_numpy(data_type: DataType) -> None:
    borrowed = {"F8": "U8", "F8143": "U8", "F8152": "U8", "BF16": "U16"}
    expected = DataType[borrowed.get(data_type.name, data_type.name)]
    assert DataType.from_numpy(data_type.numpy_dtype) is expected


@pytest.mark.parametrize(
    ("dtype", "data_type"),
    [
        ("S7", DataType.STRING),
        ("U3", DataType.STRING),
        (str, DataType.STRING),
        (float, DataType.F64),
        (bool, DataType.BOOL),
        ("<i4", DataType.S32),
        ("=f2", DataType.F16),
    ],
)
def test_from_other_spellings(dtype: type | str, data_type: DataType) -> None:
    assert DataType.from_numpy(dtype) is data_type


@pytest.mark.parametrize(
    "dtype", ["c8", "M8[s]", "m8[s]", "V4", "longdouble", ">f4", ">i8"]
)
def test_has_no_counterpart(dtype: str) -> None:
    with pytest.raises(InvalidValueError, match="numpy type"):
        DataType.from_numpy(dtype)


def test_single_bytes_have_no_order() -> None:
    assert DataType.from_numpy(">u1") is DataType.U8


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert DataType.from_numpy(np.dtype(ml_dtypes.bfloat16)) is DataType.BF16
    with pytest.raises(InvalidValueError, match="float8"):
        DataType.from_numpy(np.dtype(ml_dtypes.float8_e4m3fn))
