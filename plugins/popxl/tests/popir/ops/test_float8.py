"""float8 on a device: bit for bit what the host computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import popart
import popir
import popxl
from plugins.popxl.tests.popir.runs import run
from popxl import ops, utils

FORMATS = [popxl.float8_143, popxl.float8_152]
FORMAT = pytest.mark.parametrize("to", FORMATS, ids=str)


def values(to: Any) -> np.ndarray[Any, Any]:
    """All that is exact, what lies between, right beside that, and much else."""
    table = popir.decode(np.arange(256, dtype=np.uint8), to._below)
    exact = np.sort(table[np.isfinite(table)])
    middle = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(side)) for side in (1e9, -1e9)]
    rng = np.random.default_rng(3)
    many = rng.normal(size=4000) * 10.0 ** rng.integers(-9, 9, 4000)
    odd = [0, -0.0, np.inf, -np.inf, np.nan, 240, 247.9, 248, -248, 61439, 61440]
    every = np.concatenate([table, middle, *beside, many, odd])
    return every.astype(np.float32)


@FORMAT
@pytest.mark.parametrize("scale", [-32, -5, 0, 3, 31])
def test_casts_are_those_of_the_host(to: Any, scale: int) -> None:
    given, by = values(to), np.array(scale, np.int32)
    with np.errstate(over="ignore"):
        half = given.astype(np.float16)
    for array in (given, half):
        (codes,) = run(lambda t, s: ops.pow2scale_cast_to_fp8(t, s, to), array, by)
        expected = utils.host_pow2scale_cast_to_fp8(array, to, scale)
        assert codes.dtype == expected.dtype
        np.testing.assert_array_equal(codes.view(np.uint8), expected.view(np.uint8))
    every = np.arange(256, dtype=np.uint8).view(to.as_numpy())
    for wide in (popxl.float32, popxl.float16):
        (back,) = run(
            lambda t, s, w=wide: ops.pow2scale_cast_from_fp8(t, s, w), every, by
        )
        with np.errstate(over="ignore"):
            known = utils.host_pow2scale_cast_from_fp8(every, wide, scale)
        np.testing.assert_array_equal(back, known)


@FORMAT
def test_codes_pass_bit_for_bit(to: Any) -> None:
    codes = np.arange(12, dtype=np.uint8).reshape(3, 4) * 21
    given = codes.view(to.as_numpy()).reshape(3, 4)

    def moved(t: Any) -> list[Any]:
        at = popxl.constant(np.array([1], np.uint32))
        return [
            ops.reshape(t, (4, 3)),
            ops.transpose(t),
            ops.slice(t, 1, 3, axis=1),
            ops.subsample(t, np.array([2, 2])),  # type: ignore[arg-type]
            ops.concat([t, t]),
            ops.split(t, 2, 1)[0],
            ops.gather(t, popxl.constant(np.array([1, 0], np.int32))),
            ops.dynamic_slice(t, at, [1], [2], True),
            ops.reshape_(t, (12,)),
            ops.ipu_copy(t, 1, 0),
        ]

    expected = [
        codes.reshape(4, 3),
        codes.T,
        codes[:, 1:3],
        codes[::2, ::2],
        np.concatenate([codes, codes]),
        codes[:, :2],
        codes[[1, 0]],
        codes[:, 1:3],
        codes.reshape(12),
        codes,
    ]
    for found, known in zip(run(moved, given), expected, strict=True):
        assert found.dtype == to.as_numpy()
        np.testing.assert_array_equal(found.view(np.uint8).reshape(known.shape), known)


@FORMAT
def test_products(to: Any) -> None:
    rng = np.random.default_rng(0)

    def made(*shape: int) -> Any:
        return utils.host_pow2scale_cast_to_fp8(rng.normal(size=shape), to)

    def exact(codes: Any) -> Any:
        return utils.host_pow2scale_cast_from_fp8(codes, popxl.float32)

    two = np.array(2, np.int32)
    a, b = made(3, 4), made(4, 5)
    (found,) = run(ops.matmul_pow2scaled, a, b, two)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, exact(a) @ exact(b) * 4, rtol=2e-3, atol=1e-2)
    x, w, turned = made(1, 2, 5, 5), made(3, 2, 3, 3), made(2, 3, 3, 3)
    for eight, plain, weight in (
        (ops.conv_pow2scaled, ops.conv, w),
        (ops.conv_transpose_pow2scaled, ops.conv_transpose, turned),
    ):
        (found,) = run(eight, x, weight, two)
        (known,) = run(plain, exact(x), exact(weight))
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, known * 4, rtol=2e-3, atol=2e-2)


def test_scales_out_of_range_are_an_error_where_the_options_say_so() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        scale = popxl.variable(32, popxl.int32, "scale")
        codes = ops.pow2scale_cast_to_fp8(x, scale, popxl.float8_143)
        ops.host_store(popxl.d2h_stream((2,), popxl.float8_143), codes)
    with popxl.Session(ir) as session:
        session.run()
    ir._pb_ir.getSessionOptions().throwIfLog2ScaleTensorNotInRange = True
    for kind in ("ipu_model", "ipu_hw"):
        session = popxl.Session(ir, kind)
        error = popart.poplar_application_runtime_error
        with session, pytest.raises(error, match="is 32"):
            session.run()
        session.write_variable_data(scale, 31)
        with session:
            session.run()
        session.write_variable_data(scale, 32)


def test_what_is_refused() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        eight = popxl.variable(np.ones(2), popxl.float8_143)
        zero = popxl.constant(0, popxl.int32)
        cast = ops.pow2scale_cast_to_fp8
        with pytest.raises(TypeError):
            ops.cast(x, popxl.float8_143)
        with pytest.raises(TypeError, match="must be a float8 type"):
            cast(x, zero, popxl.float32)
        with pytest.raises(ValueError, match="must be a scalar tensor"):
            cast(x, popxl.constant([0], popxl.int32), popxl.float8_143)
        with pytest.raises(TypeError, match=r"must be of type popxl\.int32"):
            cast(x, popxl.constant(0.0), popxl.float8_143)
        with pytest.raises(TypeError):
            ops.pow2scale_cast_from_fp8(eight, zero, popxl.float64)
        with pytest.raises(TypeError):
            ops.matmul_pow2scaled(x, eight, zero)
        with pytest.raises(popart.popart_exception):
            eight + eight
        graph = ir.create_graph(lambda t: cast(t, popxl.constant(0, popxl.int32),
                                               popxl.float8_143), x)  # fmt: skip
        with pytest.raises(popart.popart_exception, match="no gradient"):
            popxl.transforms.autodiff(graph)
