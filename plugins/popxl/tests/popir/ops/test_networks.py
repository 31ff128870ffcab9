"""Convolutions that go back, and images at other sizes, beside plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import popart
import popxl
from plugins.popxl.tests.popir.runs import run
from popxl import ops
from popxl.ops.scatter_reduce import grouped_scatter_reduce
from popxl.transforms import autodiff

RNG = np.random.default_rng(2)
X = RNG.normal(size=(2, 4, 3, 4)).astype(np.float32)


def transposed(x: Any, w: Any, stride: int, groups: int) -> Any:
    """A transposed convolution without padding, element by element."""
    n, channels, height, width = x.shape
    _, out, kh, kw = w.shape
    shape = (n, out * groups, (height - 1) * stride + kh, (width - 1) * stride + kw)
    result = np.zeros(shape)
    per = channels // groups
    for c in range(channels):
        group = c // per
        for i in range(height):
            for j in range(width):
                part = x[:, c, i, j][:, None, None, None] * w[c][None]
                at = (slice(i * stride, i * stride + kh),
                      slice(j * stride, j * stride + kw))  # fmt: skip
                result[:, group * out : (group + 1) * out, at[0], at[1]] += part
    return result


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (2, 2), (3, 4)])
def test_conv_transpose(stride: int, groups: int) -> None:
    w = RNG.normal(size=(4, 2, 3, 2)).astype(np.float32)
    full = transposed(X, w, stride, groups)

    def built(t: Any, v: Any) -> list[Any]:
        def made(**options: Any) -> Any:
            return ops.conv_transpose(t, v, (stride, stride), groups=groups, **options)

        rows, columns = full.shape[2:]
        return [
            made(),
            made(padding=(1, 0, 1, 1)),
            made(output_shape=(rows - 1, columns), pad_type="same_upper"),
            made(output_shape=(rows - 1, columns), pad_type="same_lower"),
            made(output_shape=(2, 2 * groups, rows - 1, columns)),
            made(pad_type="valid"),
        ]

    found = run(built, X, w)
    expected = [
        full,
        full[:, :, 1:-1, : full.shape[3] - 1],
        full[:, :, :-1],
        full[:, :, 1:],
        full[:, :, 1:],
        full,
    ]
    for one, known in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, known, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 1, 3)])
def test_output_padding_beyond_the_stride(
    stride: int, padding: tuple[int, int, int, int]
) -> None:
    w = RNG.normal(size=(4, 2, 3, 4)).astype(np.float32)
    full = np.pad(transposed(X, w, stride, 1), [(0, 0), (0, 0), (0, 2), (0, 1)])
    top, left, bottom, right = padding
    rows, columns = full.shape[2:]
    (found,) = run(
        lambda t, v: ops.conv_transpose(
            t, v, (stride, stride), padding, output_padding=(2, 1)
        ),
        X,
        w,
    )
    expected = full[:, :, top : rows - bottom, left : columns - right]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_output_padding_alone_is_left() -> None:
    x, w = np.ones((1, 1, 1, 4), np.float32), np.ones((1, 1, 1, 1), np.float32)
    (found,) = run(
        lambda t, v: ops.conv_transpose(
            t, v, (1, 1), (1, 0, 0, 1), output_padding=(2, 0)
        ),
        x,
        w,
    )
    np.testing.assert_array_equal(found, np.zeros((1, 1, 2, 3), np.float32))


def test_what_conv_transpose_refuses() -> None:
    with popxl.Ir().main_graph:
        t = popxl.variable(X)
        w = popxl.variable(np.ones((4, 2, 3, 3), np.float32))
        with pytest.raises(popart.popart_exception, match="dilations of 1"):
            ops.conv_transpose(t, w, dilation=(2, 2))
        with pytest.raises(ValueError, match="output_shape"):
            ops.conv_transpose(t, w, output_shape=(5, 6), pad_type="valid")
        with pytest.raises(ValueError, match="output_shape"):
            ops.conv_transpose(t, w, output_shape=(1, 5, 6))
        with pytest.raises(ValueError, match="pad_type"):
            ops.conv_transpose(t, w, pad_type="other")  # type: ignore[arg-type]


def test_interpolate_nearest_and_linear() -> None:
    (near,) = run(lambda t: ops.interpolate(t, (1.0, 1.0, 2.0, 2.0)), X)
    np.testing.assert_array_equal(near, X.repeat(2, 2).repeat(2, 3))
    row = np.array([[[[0.0, 4.0]]]], np.float32)
    scales = (1.0, 1.0, 1.0, 2.0)
    (linear,) = run(lambda t: ops.interpolate(t, scales, "linear"), row)
    np.testing.assert_array_equal(linear, [[[[0, 1, 3, 4]]]])
    with popxl.Ir().main_graph:
        t = popxl.variable(X)
        with pytest.raises(ValueError, match="Unknown mode"):
            ops.interpolate(t, mode="other")  # type: ignore[arg-type]
        late = ops.interpolate(t, coordinate_transformation_mode="tf_crop_and_resize")
        ops.host_store(popxl.d2h_stream(late.shape, late.dtype), late)
        with pytest.raises(popart.popart_exception, match="tf_crop_and_resize"):
            popxl.Session(popxl.gir())


def test_groups_gather_and_scatter_among_their_own() -> None:
    data = RNG.normal(size=(2, 4, 3)).astype(np.float32)
    at = np.array([[0, 3, 9], [1, 1, -5]], np.int32)

    def built(t: Any, i: Any) -> Any:
        return ops.groupedgather(t, i, 1, 2, zero_OOR=True)

    (found,) = run(built, data, at)
    expected = np.stack([data[g][at[g] % 4] for g in range(2)])
    expected[:, 2] = 0
    np.testing.assert_array_equal(found, expected)
    rows = RNG.normal(size=(2, 2, 3)).astype(np.float32)
    where = np.array([[0, 2], [1, 1]], np.int32)
    (summed,) = run(
        lambda t, i: grouped_scatter_reduce(
            t, i, "max", axis=1, axis_size=3, group_size=2
        ),
        rows,
        where,
    )
    expected = np.zeros((2, 3, 3), np.float32)
    expected[0, [0, 2]] = rows[0]
    expected[1, 1] = rows[1].max(0)
    np.testing.assert_array_equal(summed, expected)


def test_norms_of_float16_with_a_small_eps() -> None:
    rows = np.array([[5, 5, 5, 5], [1, 2, 3, 4]], np.float16)
    ones = np.ones(4, np.float16)

    def built(x: Any, w: Any) -> Any:
        made = ops.layer_norm(x, w, w, 1e-12)
        images = ops.reshape(x, (2, 4, 1))
        return made, ops.batch_norm_inference(images, w, w, x[0], x[1] - x[1], 1e-12)

    found, images = run(built, rows, ones)
    np.testing.assert_array_equal(found[0], ones)
    expected = (rows[1] - 2.5) / np.sqrt(1.25) + 1
    np.testing.assert_allclose(found[1], expected, rtol=2e-3)
    np.testing.assert_array_equal(images[0, :, 0], ones)


def test_gradients_of_norms_of_constant_rows_of_float16() -> None:
    rows = np.array([[5, 5, 5, 5], [1, 2, 3, 4]], np.float16)
    ir = popxl.Ir()
    with ir.main_graph:
        x, w = popxl.variable(rows), popxl.variable(np.ones(4, np.float16))
        graph = ir.create_graph(lambda x, w: ops.layer_norm(x, w, w, 1e-12), x, w)
        call = ops.call_with_info(graph, x, w)
        info = autodiff(graph)
        assert not isinstance(info, dict)
        seed = popxl.constant(np.array([[0] * 4, [1, 2, 3, 5]]), popxl.float16)
        made = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in made]
        for stream, tensor in zip(streams, made, strict=True):
            ops.host_store(stream, tensor)
    with popxl.Session(ir) as session:
        dx, dw = (session.run()[stream] for stream in streams)
    np.testing.assert_array_equal(dx[0], np.zeros(4))
    np.testing.assert_allclose(dx[1], [0.179, -0.089, -0.358, 0.268], atol=1e-3)
    normal = (rows[1] - 2.5) / np.sqrt(1.25)
    np.testing.assert_allclose(dw, (normal + 1) * [1, 2, 3, 5], atol=1e-2)
