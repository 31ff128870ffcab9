from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from popef_io import DataType, InvalidValueError, Metadata, Option, TensorInfo
from tests.popef_io.containers import small_metadata


@pytest.mark.parametrize(
    ("shape", "data_type", "elements", "size"),
    [
        ((), DataType.F32, 1, 4),
        ((1,), DataType.F16, 1, 2),
        ((0,), DataType.F64, 0, 0),
        ((3, 5, 7), DataType.S16, 105, 210),
        ((2, 0, 9), DataType.U64, 0, 0),
        ((1 << 40,), DataType.BF16, 1 << 40, 1 << 41),
    ],
)
def test_sizes(
    shape: tuple[int, ...], data_type: DataType, elements: int, size: int
) -> None:
    info = TensorInfo(shape, data_type)
    assert info.is_static
    assert info.element_count == elements
    assert info.size_in_bytes == size


@pytest.mark.parametrize("shape", [None, (-1,), (2, -1)])
def test_sizes_known_at_run_time_only(shape: tuple[int, ...] | None) -> None:
    info = TensorInfo(shape, DataType.F32)
    assert not info.is_static
    with pytest.raises(InvalidValueError, match="run time"):
        _ = info.element_count
    with pytest.raises(InvalidValueError, match="run time"):
        _ = info.size_in_bytes


def test_strings_have_no_size() -> None:
    info = TensorInfo((2,), DataType.STRING)
    assert info.element_count == 2
    with pytest.raises(InvalidValueError, match=r"STRING\[2\]"):
        _ = info.size_in_bytes


def test_as_text() -> None:
    assert str(TensorInfo((1, -1, 64), DataType.F32)) == "F32[1, ?, 64]"
    assert str(TensorInfo((), DataType.BOOL)) == "BOOL[]"
    assert str(TensorInfo(None, DataType.STRING)) == "STRING[...]"


def test_options() -> None:
    options = (Option("a", "1"), Option("b", ""))
    metadata = small_metadata(engine_options=options)
    assert metadata.option("a") == "1"
    assert metadata.option("b", "default") == ""
    assert metadata.option("c") is None
    assert metadata.option("c", "default") == "default"


def test_defaults() -> None:
    metadata = Metadata("net")
    assert metadata.anchors == ()
    assert metadata.program_flow.main == ()
    assert metadata.programs_map == {}
    assert metadata.replication_factor == metadata.num_ipus == 1
    assert metadata.is_inference


def test_values_are_frozen_and_compare() -> None:
    metadata = small_metadata()
    assert metadata == small_metadata()
    assert metadata != small_metadata(seed_handle="seed")
    with pytest.raises(FrozenInstanceError):
        metadata.seed_handle = "x"  # type: ignore[misc]
