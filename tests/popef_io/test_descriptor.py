"""Each field of each descriptor at its bounds and beyond, writing and reading.

Covers: popef_io/fields.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from popef_io import (
    Anchor,
    BlobType,
    CorruptError,
    DataType,
    FeedDataInfo,
    InvalidValueError,
    LimitError,
    Location,
    Metadata,
    Option,
    PopefError,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
    TensorType,
)
from popef_io.descriptor import Info, decode, encode, type_of
from popef_io.metadata import ExecutableInfo, OpaqueInfo
from tests.popef_io.containers import (
    METADATA,
    anchor_fields,
    info,
    metadata_fields,
    pack,
    small_metadata,
    tensor_fields,
)

HERE = Location("file", 1000, 3, "TYPE")
ANCHOR = Anchor("x", "h2d_x", info(2), TensorType.INPUT, (1,))
U32_MAX = (1 << 32) - 1
S64_MAX = (1 << 63) - 1
LONG_NAME = "é" * 8192  # 16,384 bytes


def round_trip(value: Info) -> Info:
    return decode(type_of(value), encode(value), HERE)


def with_anchor(**changes: Any) -> Metadata:
    return small_metadata(anchors=(replace(ANCHOR, **changes),))


def many_anchors(count: int) -> Metadata:
    return small_metadata(
        anchors=tuple(
            Anchor(f"{index:x}", "", info(), TensorType.UNKNOWN)
            for index in range(count)
        )
    )


def shaped(*shape: int, data_type: DataType = DataType.U8) -> TensorDataInfo:
    return TensorDataInfo("t", TensorInfo(shape, data_type))


def options(count: int) -> tuple[Option, ...]:
    return tuple(Option(str(index), "") for index in range(count))


AT_BOUNDS: list[Info] = [
    ExecutableInfo("n"),
    ExecutableInfo(LONG_NAME),
    OpaqueInfo("a\0b\n\x1b[31m\u202e", ""),
    OpaqueInfo(LONG_NAME, LONG_NAME),
    shaped(),
    shaped(0),
    shaped(S64_MAX),
    shaped(S64_MAX // 8, data_type=DataType.F64),
    shaped(*[1] * 32),
    shaped(0, S64_MAX),
    TensorDataInfo(LONG_NAME, info(), LONG_NAME),
    FeedDataInfo("f", info(), 0),
    FeedDataInfo("f", info(data_type=DataType.U8), S64_MAX),
    FeedDataInfo(LONG_NAME, info(*[1] * 31), 1, LONG_NAME),
    Metadata("n"),
    Metadata(LONG_NAME, seed_handle=LONG_NAME),
    small_metadata(replication_factor=1 << 16, num_ipus=1 << 16),
    small_metadata(num_processes=1 << 16, ipu_version=U32_MAX),
    small_metadata(device_iterations=U32_MAX, is_pod=True, is_inference=False),
    small_metadata(programs_map={0: "", U32_MAX: LONG_NAME}),
    small_metadata(programs_map=dict.fromkeys(range(1 << 16), "")),
    small_metadata(
        program_flow=ProgramFlow((0,) * 1024, (1,) * 1024, (U32_MAX,) * 1024)
    ),
    small_metadata(engine_options=options(1 << 12), device_options=options(1 << 12)),
    small_metadata(engine_options=(Option(LONG_NAME, "v" * (1 << 20)),)),
    with_anchor(name=LONG_NAME, handle=LONG_NAME),
    with_anchor(programs=tuple(range(U32_MAX - 1023, U32_MAX + 1))),
    with_anchor(tensor_info=TensorInfo(None, DataType.STRING), is_per_replica=True),
    with_anchor(tensor_info=info(*[-1] * 32)),
    with_anchor(type=TensorType.UNKNOWN, handle=""),
    *(with_anchor(tensor_info=info(data_type=data_type)) for data_type in DataType),
    *(with_anchor(type=direction) for direction in TensorType),
]


@pytest.mark.parametrize("value", AT_BOUNDS, ids=lambda value: type(value).__name__)
def test_at_the_bounds(value: Info) -> None:
    assert round_trip(value) == value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (ExecutableInfo(LONG_NAME + "x"), "ExecutableInfo.name"),
        (OpaqueInfo("n", LONG_NAME + "x"), "OpaqueInfo.executable"),
        (shaped(S64_MAX + 1), "tensor_info.shape"),
        (shaped(*[1] * 33), "tensor_info.shape (rank)"),
        (shaped(1 << 61, data_type=DataType.F64), "size of the tensor"),
        (shaped(1 << 32, 1 << 32), "size of the tensor"),
        (FeedDataInfo("f", info(*[1] * 32), 1), "rank of a feed's tensor"),
        (FeedDataInfo("f", info(), 1 << 62), "size of the tensor"),
        (FeedDataInfo("f", info(), S64_MAX + 1), "FeedDataInfo.num_tensors"),
        (small_metadata(replication_factor=(1 << 16) + 1), "replication_factor"),
        (small_metadata(num_ipus=(1 << 16) + 1), "num_ipus"),
        (small_metadata(num_processes=(1 << 16) + 1), "num_processes"),
        (small_metadata(ipu_version=U32_MAX + 1), "ipu_version"),
        (small_metadata(device_iterations=U32_MAX + 1), "device_iterations"),
        (small_metadata(seed_handle=LONG_NAME + "x"), "seed_handle"),
        (small_metadata(programs_map={U32_MAX + 1: ""}), "programs_map[0]"),
        (
            small_metadata(programs_map=dict.fromkeys(range((1 << 16) + 1), "")),
            "length",
        ),
        (
            small_metadata(program_flow=ProgramFlow(main=(0,) * 1025)),
            "program_flow.main",
        ),
        (
            small_metadata(engine_options=options((1 << 12) + 1)),
            "engine_options (length)",
        ),
        (
            small_metadata(device_options=(Option("a", "v" * (1 << 20) + "v"),)),
            "[0].value",
        ),
        (small_metadata(device_options=(Option(LONG_NAME + "x", ""),)), "[0].name"),
        (with_anchor(handle=LONG_NAME + "x"), "Metadata.anchors[0].handle"),
        (with_anchor(programs=tuple(range(1025))), "anchors[0].programs (length)"),
        (with_anchor(programs=(U32_MAX + 1,)), "anchors[0].programs[0]"),
        (with_anchor(tensor_info=info(-1, 1 << 63)), "anchors[0].tensor_info.shape"),
        (
            small_metadata(
                engine_options=tuple(
                    Option(str(index), "v" * (1 << 20)) for index in range(9)
                )
            ),
            "descriptor size",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_beyond_a_limit(value: Info, field: str) -> None:
    with pytest.raises(LimitError) as caught:
        encode(value)
    error = caught.value
    assert field in str(error)
    assert error.value > error.limit
    assert error.where is None


def test_anchors_at_the_bound_and_beyond_it() -> None:
    most = many_anchors(1 << 16)  # takes too long for a parameter: those are made first
    assert round_trip(most) == most
    with pytest.raises(LimitError, match=r"anchors \(length\)"):
        encode(many_anchors((1 << 16) + 1))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (ExecutableInfo(""), "ExecutableInfo.name: must not be empty"),
        (ExecutableInfo("\ud800"), "ExecutableInfo.name: not valid Unicode"),
        (ExecutableInfo(b"n"), "expected a string, got bytes"),  # type: ignore[arg-type]
        (shaped(-2), "at least -1"),
        (shaped(-1), "data must have a known shape, got U8[?]"),
        (
            TensorDataInfo("t", TensorInfo(None, DataType.U8)),
            "known shape, got U8[...]",
        ),
        (TensorDataInfo("t", TensorInfo("12", DataType.U8)), "got str"),  # type: ignore[arg-type]
        (TensorDataInfo("t", TensorInfo(7, DataType.U8)), "got int"),  # type: ignore[arg-type]
        (TensorDataInfo("t", TensorInfo((1.0,), DataType.U8)), "got float"),  # type: ignore[arg-type]
        (TensorDataInfo("t", TensorInfo((True,), DataType.U8)), "got bool"),
        (TensorDataInfo("t", TensorInfo((1,), 3)), "expected DataType, got int"),  # type: ignore[arg-type]
        (TensorDataInfo("t", (1,)), "expected TensorInfo, got tuple"),  # type: ignore[arg-type]
        (FeedDataInfo("f", info(-1), 1), "known shape"),
        (FeedDataInfo("f", info(), -1), "num_tensors: expected at least 0, got -1"),
        (small_metadata(executable=""), "Metadata.executable: must not be empty"),
        (small_metadata(num_ipus=0), "num_ipus: expected at least 1, got 0"),
        (small_metadata(is_pod=1), "is_pod: expected true or false, got int"),
        (small_metadata(programs_map=[(0, "a")]), "expected a mapping, got list"),
        (small_metadata(programs_map={-1: "a"}), "at least 0"),
        (small_metadata(anchors=None), "expected a sequence, got nil"),
        (small_metadata(anchors={}), "expected a sequence, got dict"),
        (small_metadata(anchors=("x",)), "anchors[0]: expected Anchor, got str"),
        (small_metadata(anchors=(ANCHOR, ANCHOR)), "'h2d_x' is used twice"),
        (
            small_metadata(anchors=(ANCHOR, replace(ANCHOR, handle="h"))),
            "two INPUT anchors have the name 'x'",
        ),
        (with_anchor(name=""), "anchors[0].name: must not be empty"),
        (with_anchor(handle=""), "anchors[0]: INPUT anchor 'x' must have a handle"),
        (
            with_anchor(programs=(2, 2)),
            "anchors[0].programs: a program is listed twice",
        ),
        (with_anchor(type="INPUT"), "anchors[0].type: expected TensorType, got str"),
        (
            small_metadata(engine_options=(Option("a", "1"), Option("a", "1"))),
            "engine_options: option 'a' is set twice",
        ),
        (
            small_metadata(device_options=(Option("", ""),)),
            "device_options[0].name: must not be empty",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_written(value: Info, reason: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        encode(value)
    assert reason in str(caught.value)


def test_what_describes_no_blob() -> None:
    with pytest.raises(InvalidValueError, match="got Option"):
        encode(Option("a", "b"))  # type: ignore[arg-type]


def test_takes_numpys_integers_and_lists() -> None:
    shape = [np.int64(2), np.uint8(3)]
    value = TensorDataInfo("t", TensorInfo(shape, DataType.U8))  # type: ignore[arg-type]
    assert round_trip(value) == shaped(2, 3)


def test_names_of_one_anchor_in_both_directions() -> None:
    back = replace(ANCHOR, handle="d2h_x", type=TensorType.OUTPUT)
    idle = replace(ANCHOR, handle="", type=TensorType.UNKNOWN)
    value = small_metadata(anchors=(ANCHOR, back, idle))
    assert round_trip(value) == value


@pytest.mark.parametrize(
    ("change", "offset"),
    [
        (lambda fields: fields.update(num_ipus="2"), "num_ipus"),
        (lambda fields: fields.update(seed_handle=None), "seed_handle"),
        (lambda fields: fields["anchors"].append(7), "anchors[1]"),
        (
            lambda fields: fields.update(anchors=[anchor_fields(programs=[1, "2"])]),
            "anchors[0].programs[1]",
        ),
        (lambda fields: fields.update(programs_map=[[0, "a"], [1]]), "programs_map[1]"),
    ],
)
def test_names_the_field_and_its_offset(
    change: Callable[[dict[str, Any]], None], offset: str
) -> None:
    fields = metadata_fields()
    change(fields)
    data = pack(fields)
    with pytest.raises(CorruptError, match="descriptor field") as caught:
        decode(BlobType(METADATA), data, HERE)
    error = caught.value
    assert f"descriptor field {offset}: " in str(error)
    assert error.where is not None
    begin = data.index(offset.split("[")[0].encode())
    assert 1064 + begin < error.where.offset <= 1064 + len(data)
    assert (error.where.blob, error.where.blob_type) == (3, "TYPE")


def test_every_truncation() -> None:
    for kind, data in (
        (BlobType.METADATA, pack(metadata_fields())),
        (BlobType.DATA_TENSOR, pack(tensor_fields())),
    ):
        decode(kind, data, HERE)
        for size in range(len(data)):
            with pytest.raises(PopefError, match="blob 3"):
                decode(kind, data[:size], HERE)
