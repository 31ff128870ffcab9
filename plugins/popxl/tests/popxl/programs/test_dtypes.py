import numpy as np
import pytest

import popxl
from popxl import dtype, dtypes, ops
from popxl.fp8_utils import (
    host_fp8_mse_scale,
    host_fp8_mse_scale_pb,
    host_pow2scale_cast_from_fp8,
    host_pow2scale_cast_to_fp8,
)
from popxl.utils import downcast_np_dtypes, table_to_string, to_numpy


def test_dt():
    with pytest.raises(TypeError):
        dtype()
    assert repr(popxl.float32) == "popxl.dtypes.float32"
    assert popxl.float is popxl.float32
    assert popxl.half is popxl.float16
    assert popxl.double is popxl.float64
    T = {
        "bool": (0, 0, 0, 0),
        "int8": (1, 0, 0, 1),
        "int16": (1, 0, 0, 1),
        "int32": (1, 0, 0, 1),
        "int64": (1, 0, 0, 1),
        "uint8": (1, 0, 0, 0),
        "uint16": (1, 0, 0, 0),
        "uint32": (1, 0, 0, 0),
        "uint64": (1, 0, 0, 0),
        "float8_143": (0, 1, 0, 1),
        "float8_152": (0, 1, 0, 1),
        "float16": (0, 1, 0, 1),
        "float32": (0, 1, 0, 1),
        "float64": (0, 1, 0, 1),
        "complex64": (0, 0, 1, 1),
        "complex128": (0, 0, 1, 1),
    }
    for n, (i, f, c, s) in T.items():
        d = getattr(popxl, n)
        assert (d.is_int, d.is_floating_point, d.is_complex, d.is_signed) == tuple(
            map(bool, (i, f, c, s))
        ), n
        assert d.name == n
        assert dtype.from_name(n) is d
        assert dtype.as_dtype(n) is d
        assert dtype.as_dtype(d) is d
        assert getattr(dtypes, n) is d
        assert dtype.as_dtype(d.as_numpy()) is d
    assert dtypes.np_dtype_float8_143 == popxl.float8_143.as_numpy()
    assert popxl.float8_143.as_numpy().names == ("float8_143",)
    assert popxl.float8_143.as_numpy()[0] == np.dtype("u1")
    for n in ("half", "float", "double", "foo"):
        with pytest.raises(ValueError):
            dtype.from_name(n)
    assert dtype.as_dtype(float) is popxl.float32
    assert dtype.as_dtype(int) is popxl.int64
    assert dtype.as_dtype(bool) is popxl.bool
    assert dtype.as_dtype(np.float16) is popxl.float16
    assert dtype.as_dtype(np.dtype("int8")) is popxl.int8
    assert dtype.as_dtype("f4") is popxl.float32
    assert dtype.as_dtype(np.ones(2, np.int16)) is popxl.int16
    for x in ("foo", object()):
        with pytest.raises(ValueError):
            dtype.as_dtype(x)
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        with pytest.raises(ModuleNotFoundError):
            popxl.float32.as_torch()
    assert dtypes._NP_TO_POPXL[np.dtype("float32")] is popxl.float32
    assert dtypes._STR_TO_POPXL["float32"] is popxl.float32
    assert dtypes._PY_TO_POPXL[bool] is popxl.bool
    assert hash(popxl.float32)
    assert {popxl.float32: 1}[popxl.float]
    from popxl.testing import get_all_dtypes, get_all_int_dtypes

    a = get_all_dtypes()
    assert popxl.bool not in a
    assert popxl.complex64 in a
    assert popxl.int8 in a
    assert popxl.uint8 not in get_all_int_dtypes(include_unsigned=False)
    assert popxl.int8 not in get_all_int_dtypes(include_signed=False)


def test_as_torch_none():
    for d in (
        popxl.uint16,
        popxl.uint32,
        popxl.uint64,
        popxl.float8_143,
        popxl.float8_152,
    ):
        with pytest.raises((TypeError, ModuleNotFoundError)):
            d.as_torch()


def test_to_numpy():
    assert to_numpy(1).dtype == np.int32
    assert to_numpy(1.0).dtype == np.float32
    assert to_numpy([1, 2]).dtype == np.int32
    assert to_numpy(np.uint64(2)).dtype == np.uint32
    assert to_numpy(1, downcast=False).dtype == np.int64
    a = np.ones((2, 3), np.float32)
    assert to_numpy(a) is not a
    assert not np.shares_memory(to_numpy(a), a)
    assert np.shares_memory(to_numpy(a, copy=False), a)
    assert to_numpy(a.T, copy=False).flags.c_contiguous
    assert to_numpy(a, popxl.float16).dtype == np.float16
    assert to_numpy([1, 0], popxl.bool).dtype == bool
    with pytest.raises(RuntimeError):
        to_numpy(a, popxl.float16, log2_scale=1)
    with pytest.raises(RuntimeError):
        to_numpy(a, nan_on_overflow=True)
    f = to_numpy(a, popxl.float8_143)
    assert f.dtype == popxl.float8_143.as_numpy()
    assert to_numpy(f, popxl.float8_143).dtype == f.dtype
    with pytest.raises(TypeError):
        to_numpy(np.ones(2, np.int32), popxl.float8_143)
    assert (
        to_numpy(np.ones(2), popxl.float8_152, log2_scale=1, nan_on_overflow=True).dtype
        == popxl.float8_152.as_numpy()
    )
    assert set(downcast_np_dtypes) == {
        np.dtype("int64"),
        np.dtype("uint64"),
        np.dtype("float64"),
    }


def test_table():
    s = table_to_string([["a", "bb"], ["ccc", "d"]])
    assert s.split("\n")[0] == "a   | bb" and set(s.split("\n")[1].strip()) <= set(
        "-| "
    ), s
    assert table_to_string([["a", "b"]], delimiter="|", header=False) == "a|b\n"


def test_fp8():
    enc = lambda x, d, **k: host_pow2scale_cast_to_fp8(np.array(x, np.float32), d, **k)
    c = lambda x, d, **k: enc(x, d, **k)[d.name].tolist()
    assert c([240.0, 241.0, 1e9, np.nan, np.inf, -0.0], popxl.float8_143) == [
        0x7F,
        0x7F,
        0x80,
        0x80,
        0x80,
        0,
    ]
    assert c([1e9, -1e9, np.inf], popxl.float8_143, nan_on_overflow=False) == [
        0x7F,
        0xFF,
        0x80,
    ]
    d = lambda codes, t, **k: host_pow2scale_cast_from_fp8(
        np.array(codes, np.uint8).view(t.as_numpy()), popxl.float32, **k
    ).tolist()
    assert d([0x7F, 0x01, 0x08], popxl.float8_143) == [240, 2**-10, 2**-7]
    assert d([0x7F, 0x01, 0x04], popxl.float8_152) == [57344, 2**-17, 2**-15]
    assert np.isnan(d([0x80], popxl.float8_152)[0])
    x = enc([1.5, 3.0], popxl.float8_143, log2_scale=3)
    assert host_pow2scale_cast_from_fp8(x, popxl.float32, log2_scale=-3).tolist() == [
        1.5,
        3,
    ]
    for bad in (popxl.float32, None):
        with pytest.raises(RuntimeError):
            host_pow2scale_cast_to_fp8(np.ones(2, np.float32), bad)
    with pytest.raises(RuntimeError):
        host_pow2scale_cast_from_fp8(x, popxl.int32)
    with pytest.raises(RuntimeError):
        host_pow2scale_cast_from_fp8(np.ones(2), popxl.float32)
    for t in (np.float16, np.float32, np.float64):
        assert host_pow2scale_cast_from_fp8(x, dtype.as_dtype(t)).dtype == t
    assert host_pow2scale_cast_to_fp8([1.0, 2.0], popxl.float8_152).shape == (2,)


def test_mse():
    assert (
        host_fp8_mse_scale(np.array([0.00098, 240], np.float32), popxl.float8_143)[1]
        == 0
    )
    assert (
        host_fp8_mse_scale(np.array([2**-17, 57344], np.float32), popxl.float8_152)[1]
        == 0
    )
    rng = np.random.default_rng(0)
    assert (
        host_fp8_mse_scale(
            rng.uniform(2**5, 2**6, 100).astype(np.float32), popxl.float8_143
        )[1]
        < 0
    )
    assert (
        host_fp8_mse_scale(
            rng.uniform(2**-6, 2**-5, 100).astype(np.float16), popxl.float8_152
        )[1]
        > 0
    )
    with pytest.raises(RuntimeError):
        host_fp8_mse_scale(np.ones(2, np.int32))
    s = host_fp8_mse_scale_pb(np.ones(3, np.float32), popxl.float8_143)
    assert -31 <= s <= 31


def test_utils_spell():
    import popxl.fp8_utils as f
    import popxl.utils as u

    for m in (u, f):
        for n in "host_pow2scale_then_cast host_cast_then_pow2scale host_pow2scale_cast_to_fp8 host_pow2scale_cast_from_fp8".split():
            assert hasattr(m, n), (m, n)


def test_fp8_pass():
    for d in (popxl.float8_143, popxl.float8_152):
        ir = popxl.Ir()
        data = np.arange(24, dtype=np.uint8).reshape(4, 6).view(d.as_numpy())
        with ir.main_graph, popxl.in_sequence():
            v = popxl.variable(data, d, name="v")
            outs = {
                "reshape": (v.reshape((6, 4)), data.reshape(6, 4)),
                "T": (v.T, data.T),
                "slice": (v[1:3], data[1:3]),
                "sub": (ops.subsample(v, np.array([2, 3])), data[::2, ::3]),
                "cat": (ops.concat([v, v]), np.concatenate([data, data])),
                "split": (ops.split(v, 2)[1], data[2:]),
                "sq": (ops.squeeze(v[:1]), data[0]),
                "gather": (v[[0, 2]], data[[0, 2]]),
                "rT": (v.transpose_(), data.T),
                "fl": (v.flatten_(), data.reshape(-1)),
                "cp": (ops.ipu_copy(v, 1, 0), data),
                "ct_": (ops.concat_([v, v], 1), np.concatenate([data, data], 1)),
                "sl_": (ops.slice_(v, 1, 2), data[1:2]),
                "dyn": (
                    ops.dynamic_slice(
                        v, popxl.constant([1], popxl.uint32), [0], [2], True
                    ),
                    data[1:3],
                ),
                "tio": (ops.io_tile_copy(v), data),
            }
            st = {}
            h = popxl.h2d_stream((4, 6), d, "h")
            outs["h"] = (ops.host_load(h), data)
            with popxl.ipu(1):
                pass
            for k, (t, e) in outs.items():
                st[k] = popxl.d2h_stream(t.shape, d, k)
                with popxl.ipu(t.ipu):
                    ops.host_store(st[k], t)
        with popxl.Session(ir, "ipu_model") as s:
            r = s.run({h: data})
        for k, (t, e) in outs.items():
            assert (
                r[st[k]].dtype == d.as_numpy()
                and (
                    r[st[k]].view(np.uint8) == np.ascontiguousarray(e).view(np.uint8)
                ).all()
            ), k
        assert s.get_tensor_data(v).dtype == d.as_numpy()


def test_torch():
    torch = pytest.importorskip("torch")
    assert popxl.float32.as_torch() is torch.float32
    assert dtype.as_dtype(torch.float16) is popxl.float16
    assert dtypes._PT_TO_POPXL[torch.bool] is popxl.bool
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(torch.ones(2, requires_grad=True))
        assert popxl.constant(torch.arange(2)).dtype is popxl.int32
        source = popxl.h2d_stream((2,), popxl.float32)
        sink = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(sink, ops.host_load(source) + v * torch.ones(2))
    with popxl.Session(ir) as session:
        data = torch.ones(2, dtype=torch.float64)
        assert session.run({source: data})[sink].tolist() == [2, 2]
        session.write_variable_data(v, torch.zeros(2))
        assert session.run({source: data})[sink].tolist() == [1, 1]
