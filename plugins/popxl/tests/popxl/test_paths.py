"""Names by the paths of the original's modules, and what they do."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popart._internal.ir as _ir
import popxl
from popxl import fp8_utils, ops
from popxl.context import get_current_context, get_source_location
from popxl.ops.collectives.collectives import CommGroup, to_collective_op
from popxl.transforms.autodiff import ExpectedConnection, GradGraphInfo, autodiff

multi_conv_options = importlib.import_module("popxl.ops.conv").multi_conv_options
handle_optimizer_value = importlib.import_module(
    "popxl.ops.var_updates.utils"
).handle_optimizer_value


def test_each_operator_is_in_a_module_of_its_name() -> None:
    for name in ops.__all__:
        value = getattr(ops, name)
        if not inspect.isfunction(value):
            continue
        base = name.rstrip("_")
        module = importlib.import_module(f"popxl.ops.{base}")
        assert getattr(module, name) is value
        if hasattr(ops, base):
            assert not inspect.ismodule(getattr(ops, base)) or base == "collectives"


def test_modules_leave_functions_of_their_name_alone() -> None:
    importlib.import_module("popxl.ops.collectives.all_reduce")
    importlib.import_module("popxl.ops.var_updates.adam_updater")
    assert inspect.isfunction(ops.collectives.all_reduce)
    assert inspect.isfunction(ops.var_updates.adam_updater)
    assert ops.collectives.CommGroup is CommGroup


def test_reductions_have_members() -> None:
    assert to_collective_op("max") is _ir.CollectiveOperator.Max
    with pytest.raises(ValueError, match="Not a valid"):
        to_collective_op("other")


def test_values_are_what_operators_have() -> None:
    assert handle_optimizer_value(0.5).val() == 0.5
    assert not handle_optimizer_value(None).isConst()
    options = multi_conv_options([0.5], None, [True])
    assert options.availableMemoryProportions == [0.5]
    assert options.enableConvDithering == [True]


def test_contexts_can_be_entered_by_hand() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        context = get_current_context()
        assert (context.ipu_id, context.io_tile_set, context.in_sequence) == (
            0,
            "compute",
            None,
        )
        with popxl.ipu(3), popxl.io_tiles(), popxl.in_sequence():
            assert (context.ipu_id, context.io_tile_set) == (3, "io")
            assert context.in_sequence is True
        graph = ir.create_empty_graph("inner")
        context.push_graph(graph)
        context.push_name_scope("a")
        assert context.graph is graph
        assert popxl.graph_input((), popxl.float32, "x").name == "a/x"
        assert context.pop_name_scope() == "a"
        context.pop_graph()
        assert context.graph is ir.main_graph
        seen: list[Any] = []
        ir.main_graph.register_op_created_hook(seen.append)
        ops.tanh(popxl.variable(1.0))
        context._op_created(seen[0])
        assert seen[0] == seen[1]
    assert get_source_location().startswith(f"{__file__}:")


def test_losses_of_scales_agree_with_the_best() -> None:
    values = np.array([0.01, 0.5, 30, 500], np.float32)
    metric, scale = fp8_utils.host_fp8_mse_scale(values, popxl.float8_143)
    found = fp8_utils.calculate_metric_mse(values, popxl.float8_143, scale)
    assert found == metric
    for other in range(fp8_utils.min_scaling_bias, fp8_utils.max_scaling_bias + 1):
        assert fp8_utils.calculate_metric_mse(values, log2_scale=other) >= metric


def test_ranges_of_formats() -> None:
    ranges = {
        fp8_utils.float8_143_def: (2.0**-10, 240.0),
        fp8_utils.float8_152_def: (2.0**-17, 57344.0),
        fp8_utils.ieee_float16_def: (2.0**-24, 65504.0),
        fp8_utils.ieee_float32_def: (2.0**-149, float(np.finfo(np.float32).max)),
    }
    for definition, (least, most) in ranges.items():
        low, high = fp8_utils.find_exponential_range(definition)
        assert 2.0**low == least
        assert 2.0**high <= most < 2.0 ** (high + 1)


def test_gradient_graphs_are_described_below() -> None:
    ir = popxl.Ir()
    spec = popxl.TensorSpec((2,), popxl.float32)
    with ir.main_graph:
        graph = ir.create_graph(lambda x, w: ops.tanh(x * w), spec, spec)
        info = autodiff(graph)
        assert isinstance(info, GradGraphInfo)
        made = GradGraphInfo._from_pb(
            ir._pb_ir,
            graph._pb_graph,
            _ir.BwdGraphInfo(
                _ir.GraphId(info.graph.id),
                [each._pb_ec for each in info.expected_inputs],
                [each._pb_ec for each in info.expected_outputs],
            ),
        )
    assert made.graph is info.graph
    assert made.expected_inputs == info.expected_inputs
    assert made.expected_outputs == info.expected_outputs
    (first, *_) = info.expected_inputs
    assert ExpectedConnection._from_pb(graph._pb_graph, first._pb_ec) == first


def test_host_data_are_told_from_tensors(tmp_path: Path) -> None:
    kinds = popxl.tensor.host_tensor_types
    file = np.memmap(tmp_path / "v", np.float32, "w+", shape=(2,))
    with popxl.Ir().main_graph:
        variable = popxl.variable(file)
        assert variable._memmap_arr is file
        assert popxl.variable(1.0)._memmap_arr is None
        assert not isinstance(variable, kinds)
    assert isinstance(file, kinds)
    assert isinstance([1.0], kinds)
