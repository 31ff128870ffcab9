"""What programs ask of `popart._internal.ir`: a class for each operator, its inputs,
outputs and settings, and changes that they make to graphs below `popxl`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popart
import popart._internal.ir as _ir
import popir
import popxl
from popart.names import class_of, namespace_of
from popir.records import RECORDS
from popxl import ops
from popxl.ops import collectives
from popxl.ops import var_updates as updates
from popxl.transforms import autodiff

Op = _ir.op
X = np.ones((4, 4), np.float32)
IMAGE = np.ones((1, 2, 4, 4), np.float32)
KERNEL = np.ones((2, 2, 3, 3), np.float32)
CHANNELS = np.ones(2, np.float32)
AT = np.array([0, 1], np.int32)
SEED = np.array([1, 2], np.uint32)
START = np.array([0], np.uint32)
BOOL = np.ones(2, bool)
BYTES = np.zeros((4, 4), popxl.dtypes.np_dtype_float8_143)
ONE = np.array(1.0, np.float32)
IMAGES8 = np.zeros((1, 2, 4, 4), popxl.dtypes.np_dtype_float8_143)
KERNELS8 = np.zeros((2, 2, 3, 3), popxl.dtypes.np_dtype_float8_143)
SCALE = np.array(0, np.int32)


def contains(graph: popxl.Graph, kind: type, op_type: str) -> bool:
    """Tell whether a graph has an operator of that class and type."""
    found = graph._pb_graph.getOps()
    return any(isinstance(op, kind) and op.opType() == op_type for op in found)


def _stream(*_: Any) -> Any:
    return popxl.h2d_stream((2,), popxl.float32)


def _load(*_: Any) -> Any:
    return ops.host_load(_stream())


def _store(x: Any) -> None:
    ops.host_store(popxl.d2h_stream(x.shape, x.dtype), x)


def _empty(ir: Any) -> Any:
    return ir.create_graph(lambda t: ops.tanh(t), popxl.TensorSpec((4, 4), x32))


def _rows() -> Any:
    return popxl.remote_buffer((4, 4), x32, 1)


def _branch(x: Any) -> Any:
    graph = _empty(popxl.gir())
    return ops.conditional(popxl.constant(True), graph, graph, [x], [x])


def _merged(*_: Any) -> None:
    streams = [_stream(), _stream()]
    with popxl.transforms.merge_exchange():
        for stream in streams:
            ops.host_load(stream)


def _sum(x: Any) -> Any:
    below = popxl.gcg()._pb_graph
    below.createConnectedOp_SumOp({0: x.id, 1: x.id}, {0: "sum"}, None, _ir.Settings())


x32 = popxl.float32
Row = tuple[str, str, Callable[..., Any], tuple[Any, ...]]
#: Class, type, the call, its inputs.
ROWS: list[Row] = [
    ("AbsOp", "Abs", ops.abs, (X,)),
    ("AccumulateOp", "Accumulate", updates.accumulate_, (X, X)),
    ("AccumulatorScaleOp", "AccumulatorScale", updates.accumulator_zero_, (X,)),
    ("AdamUpdaterOp", "AdamUpdater", updates.adam_updater, (X, X)),
    ("AdamVarUpdateOp", "AdamVarUpdate", updates.adam_var_update, (X, X, ONE, ONE)),
    ("AddOp", "Add", ops.add, (X, X)),
    ("AddLhsInplaceOp", "AddLhsInplace", ops.add_, (X, X)),
    ("collectives.AllReduceOp", "AllReduce", collectives.all_reduce, ((X, X),)),
    ("AndOp", "And", ops.logical_and, (BOOL, BOOL)),
    ("ArgMaxOp", "ArgMax", ops.argmax, (X,)),
    ("ArgMinOp", "ArgMin", ops.argmin, (X,)),
    ("AveragePoolOp", "AveragePool", lambda t: ops.average_pool(t, (2, 2)), (IMAGE,)),
    (
        "BatchNormOp",
        "BatchNormalization",
        ops.batch_norm_inference,
        (IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS),
    ),
    ("CallOp", "Call", lambda t: ops.call(_empty(popxl.gir()), t), (X,)),
    ("CastOp", "Cast", lambda t: ops.cast(t, popxl.float16), (X,)),
    (
        "CastThenPow2ScaleOp",
        "CastThenPow2Scale",
        lambda t, s: ops.pow2scale_cast_from_fp8(t, s, popxl.float16),
        (BYTES, SCALE),
    ),
    ("CeilOp", "Ceil", ops.ceil, (X,)),
    ("ClipOp", "Clip", ops.clip, (X,)),
    ("ConcatOp", "Concat", lambda a, b: ops.concat([a, b]), (X, X)),
    ("ConcatInplaceOp", "ConcatInplace", lambda a, b: ops.concat_([a, b]), (X, X)),
    ("ConvOp", "Conv", ops.conv, (IMAGE, KERNEL)),
    ("ConvOp", "Conv", ops.conv_pow2scaled, (IMAGES8, KERNELS8, SCALE)),
    ("ConvTransposeOp", "ConvTranspose", ops.conv_transpose, (IMAGE, KERNEL)),
    (
        "ConvTransposeOp",
        "ConvTranspose",
        ops.conv_transpose_pow2scaled,
        (IMAGES8, KERNELS8, SCALE),
    ),
    ("CopyVarUpdateOp", "CopyVarUpdate", updates.copy_var_update_, (X, X)),
    ("CosOp", "Cos", ops.cos, (X,)),
    ("CumSumOp", "CumSum", ops.cumsum, (X,)),
    ("DetachOp", "Detach", ops.detach, (X,)),
    ("DetachInplaceOp", "DetachInplace", ops.detach_, (X,)),
    ("DivOp", "Div", ops.div, (X, X)),
    ("DropoutOp", "Dropout", lambda t, s: ops.dropout(t, s, 0.5), (X, SEED)),
    (
        "dynamic.DynamicSliceOp",
        "DynamicSlice",
        lambda t, at: ops.dynamic_slice(t, at, [0], [2], True),
        (X, START),
    ),
    (
        "dynamic.DynamicUpdateOp",
        "DynamicUpdate",
        lambda t, at, u: ops.dynamic_update(t, at, u, [0], [2], True),
        (X, START, X[:2]),
    ),
    (
        "dynamic.DynamicUpdateInplaceOp",
        "DynamicUpdateInplace",
        lambda t, at, u: ops.dynamic_update_(t, at, u, [0], [2], True),
        (X, START, X[:2]),
    ),
    ("EqualOp", "Equal", ops.equal, (X, X)),
    ("ExpOp", "Exp", ops.exp, (X,)),
    ("ExpInplaceOp", "ExpInplace", ops.exp_, (X,)),
    ("FloorOp", "Floor", ops.floor, (X,)),
    ("FmodOp", "Fmod", ops.fmod, (X, X)),
    ("GatherOp", "Gather", ops.gather, (X, AT)),
    ("GeluOp", "Gelu", ops.gelu, (X,)),
    ("GeluErfOp", "GeluErf", ops.geluerf, (X,)),
    ("GeluErfInplaceOp", "GeluErfInplace", ops.geluerf_, (X,)),
    ("GeluInplaceOp", "GeluInplace", ops.gelu_, (X,)),
    ("GreaterOp", "Greater", ops.greater, (X, X)),
    ("GroupNormOp", "GroupNormalization", ops.layer_norm, (IMAGE, CHANNELS, CHANNELS)),
    ("HistogramOp", "Histogram", lambda t: ops.histogram(t, [0.0], False), (X,)),
    ("exchange.HostLoadOp", "HostLoad", _load, ()),
    ("exchange.HostStoreOp", "HostStore", _store, (X,)),
    ("IdentityOp", "Identity", ops.identity, (X,)),
    ("IfOp", "If", _branch, (X,)),
    ("IncrementModOp", "IncrementMod", lambda t: ops.increment_mod(t, 1, 3), (X,)),
    (
        "IncrementModInplaceOp",
        "IncrementModInplace",
        lambda t: ops.increment_mod_(t, 1, 3),
        (X,),
    ),
    ("InitOp", "Init", lambda: ops.init((2,), x32), ()),
    ("IoTileCopyOp", "IoTileCopy", ops.io_tile_copy, (X,)),
    ("IpuCopyOp", "IpuCopy", lambda t: ops.ipu_copy(t, 1, 0), (X,)),
    ("IsInf", "IsInf", ops.isinf, (X,)),
    ("IsNaN", "IsNaN", ops.isnan, (X,)),
    ("LambSquareOp", "LambSquare", ops.lamb_square, (X,)),
    ("LogOp", "Log", ops.log, (X,)),
    ("LoopOp", "Loop", lambda t: ops.repeat(_empty(popxl.gir()), 2, t), (X,)),
    ("MatMulOp", "MatMul", ops.matmul, (X, X)),
    ("MatMulOp", "MatMul", ops.matmul_pow2scaled, (BYTES, BYTES, SCALE)),
    ("MaxOp", "Max", ops.maximum, (X, X)),
    ("MaxPoolOp", "MaxPool", lambda t: ops.max_pool(t, (2, 2)), (IMAGE,)),
    ("ModifyRandomSeedOp", "ModifyRandomSeed", ops.split_random_seed, (SEED,)),
    ("MulOp", "Mul", ops.mul, (X, X)),
    ("exchange.MultiExchangeOp", "MultiExchange", _merged, ()),
    ("NegateOp", "Neg", ops.negate, (X,)),
    ("NllOp", "Nll", ops.nll_loss, (X, np.zeros(4, np.int32))),
    (
        "NlllWithSoftmaxGradDirectOp",
        "NlllWithSoftmaxGradDirect",
        ops.nll_loss_with_softmax_grad,
        (X, np.zeros(4, np.int32)),
    ),
    ("NotOp", "Not", ops.logical_not, (BOOL,)),
    (
        "OnehotOp",
        "OneHot",
        lambda t, v: ops.onehot(t, popxl.constant(3), v, 0),
        (AT, np.array([0, 1], np.float32)),
    ),
    ("OrOp", "Or", ops.logical_or, (BOOL, BOOL)),
    (
        "Pow2ScaleThenCastOp",
        "Pow2ScaleThenCast",
        lambda t, s: ops.pow2scale_cast_to_fp8(t, s, popxl.float8_143),
        (X, SCALE),
    ),
    ("PowOp", "Pow", ops.pow, (X, X)),
    ("PrintTensorOp", "PrintTensor", ops.print_tensor, (X,)),
    ("RandomNormalOp", "RandomNormal", lambda s: ops.random_normal(s, (2,)), (SEED,)),
    (
        "RandomUniformOp",
        "RandomUniform",
        lambda s: ops.random_uniform(s, (2,)),
        (SEED,),
    ),
    ("ReduceL1Op", "ReduceL1", ops.l1, (X,)),
    ("ReduceL2Op", "ReduceL2", ops.l2, (X,)),
    ("ReduceLogSumOp", "ReduceLogSum", ops.logsum, (X,)),
    ("ReduceLogSumExpOp", "ReduceLogSumExp", ops.logsumexp, (X,)),
    ("ReduceMaxOp", "ReduceMax", ops.max, (X,)),
    ("ReduceMeanOp", "ReduceMean", ops.mean, (X,)),
    ("ReduceMedianOp", "ReduceMedian", ops.median, (X,)),
    ("ReduceMinOp", "ReduceMin", ops.min, (X,)),
    ("ReduceProdOp", "ReduceProd", ops.prod, (X,)),
    ("ReduceSumOp", "ReduceSum", ops.sum, (X,)),
    ("ReduceSumSquareOp", "ReduceSumSquare", ops.sumsquare, (X,)),
    ("ReluOp", "Relu", ops.relu, (X,)),
    ("ReluInplaceOp", "ReluInplace", ops.relu_, (X,)),
    (
        "exchange.RemoteCodeLoadOp",
        "RemoteCodeLoad",
        lambda: ops.remote_code_load(_empty(popxl.gir()), "executable"),
        (),
    ),
    ("exchange.RemoteLoadOp", "RemoteLoad", lambda: ops.remote_load(_rows(), 0), ()),
    (
        "exchange.RemoteLoadInplaceOp",
        "RemoteLoadInplace",
        lambda t: ops.remote_load_(_rows(), 0, t),
        (X,),
    ),
    (
        "exchange.RemoteStoreOp",
        "RemoteStore",
        lambda t: ops.remote_store(_rows(), 0, t),
        (X,),
    ),
    (
        "collectives.ReplicatedAllGatherOp",
        "ReplicatedAllGather",
        collectives.replicated_all_gather,
        (X,),
    ),
    (
        "collectives.ReplicatedAllReduceOp",
        "ReplicatedAllReduce",
        collectives.replicated_all_reduce,
        (X,),
    ),
    (
        "collectives.ReplicatedAllReduceInplaceOp",
        "ReplicatedAllReduceInplace",
        collectives.replicated_all_reduce_,
        (X,),
    ),
    (
        "collectives.ReplicatedReduceScatterOp",
        "ReplicatedReduceScatter",
        collectives.replicated_reduce_scatter,
        (X,),
    ),
    ("ReshapeOp", "Reshape", lambda t: ops.reshape(t, (16,)), (X,)),
    ("ReshapeInplaceOp", "ReshapeInplace", lambda t: ops.reshape_(t, (16,)), (X,)),
    ("ResizeOp", "Resize", ops.interpolate, (IMAGE,)),
    (
        "RoiAlignOp",
        "RoiAlign",
        lambda t, r, b: ops.roi_align(t, r, b, (2, 2), 1.0, 2),
        (IMAGE, np.ones((1, 4), np.float32), np.zeros(1, np.int32)),
    ),
    ("ScaledAddOp", "ScaledAdd", ops.scaled_add, (X, X)),
    ("ScaledAddLhsInplaceOp", "ScaledAddLhsInplace", ops.scaled_add_, (X, X)),
    ("ScatterOp", "Scatter", ops.scatter, (X, np.zeros((4, 4), np.int32), X)),
    (
        "ScatterReduceOp",
        "ScatterReduce",
        lambda t, at: ops.scatter_reduce(t, at, "sum", axis_size=4),
        (X[:2], AT),
    ),
    (
        "ShapedDropoutOp",
        "ShapedDropout",
        lambda t, s: ops.shaped_dropout(t, s, (4, 1), 0.5),
        (X, SEED),
    ),
    ("SignOp", "Sign", ops.sign, (X,)),
    ("SinOp", "Sin", ops.sin, (X,)),
    ("SliceOp", "Slice", lambda t: ops.slice(t, [1], [2]), (X,)),
    ("SliceInplaceOp", "SliceInplace", lambda t: ops.slice_(t, [1], [2]), (X,)),
    ("SoftmaxOp", "Softmax", lambda t: ops.softmax(t, 1), (X,)),
    (
        "SparseAccumulateOp",
        "PopartSparseAccumulate",
        updates.sparse_accumulate_,
        (X, X[:2], AT),
    ),
    ("SplitOp", "Split", lambda t: ops.split(t, 2), (X,)),
    ("SqrtOp", "Sqrt", ops.sqrt, (X,)),
    ("SubtractOp", "Sub", ops.sub, (X, X)),
    ("SubsampleOp", "Subsample", lambda t: ops.subsample(t, [2]), (X,)),
    ("SumOp", "Sum", _sum, (X,)),
    ("SwishOp", "Swish", ops.swish, (X,)),
    ("SwishInplaceOp", "SwishInplace", ops.swish_, (X,)),
    ("TanhOp", "Tanh", ops.tanh, (X,)),
    ("TiedGatherOp", "PopartTiedGather", ops.tied_gather, (X, AT)),
    ("TopKOp", "TopK", lambda t: ops.topk(t, 2, 0, True, True), (X,)),
    ("TransposeOp", "Transpose", ops.transpose, (X,)),
    ("TransposeInplaceOp", "TransposeInplace", ops.transpose_, (X,)),
    ("WhereOp", "Where", ops.where, (np.ones((4, 4), bool), X, X)),
]


def class_at(path: str) -> type:
    value: Any = Op
    for part in path.split("."):
        value = getattr(value, part)
    assert isinstance(value, type)
    return value


def built(build: Callable[..., Any], arrays: tuple[Any, ...]) -> popxl.Graph:
    """Return the main graph of a program of one call."""

    def variable(array: Any) -> Any:
        if isinstance(array, tuple):
            return list(map(variable, array))
        made = popxl.variable(array, popxl.dtype.as_dtype(array.dtype))
        if build is collectives.all_reduce:
            return ops.identity(made)
        return made

    ir = popxl.Ir()
    with ir.main_graph as graph:
        build(*map(variable, arrays))
    return graph


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_operator_is_of_its_class(row: Row) -> None:
    path, op_type, build, arrays = row
    graph = built(build, arrays)
    assert contains(graph, class_at(path), op_type)
    for op in graph._pb_graph.getOps():
        assert isinstance(op, _ir.Op)
        assert type(op).__name__ == op.className()
        others = [name for name, *_ in ROWS if name.split(".")[-1] != op.className()]
        assert not isinstance(op, tuple(map(class_at, others)))


def test_the_rows_cover_the_table() -> None:
    named = {(path.rpartition(".")[0], path.rpartition(".")[2]) for path, *_ in ROWS}
    assert {(namespace_of(each), class_of(each)) for each in RECORDS} <= named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_indices_ids_and_shapes_agree_with_handles(row: Row) -> None:
    graph = built(row[2], row[3])
    for op in graph._pb_graph.getOps():
        inputs, outputs = op.getInputTensors(), op.getOutputTensors()
        assert op.inTensorCount() == len(inputs)
        assert op.outTensorCount() == len(outputs)
        first = 2 if op.opType() == "Loop" else 0
        for index, tensor in enumerate(inputs, first):
            assert op.hasInput(index)
            assert op.inId(index) == tensor.id
            assert op.inTensor(index) == tensor
            assert index in op.inIndices(tensor)
            assert op in tensor.consumers.getOps()
            assert tensor.consumers.n(op) == len(op.inIndices(tensor))
        assert not op.hasInput(first + len(inputs))
        for index, tensor in enumerate(outputs):
            assert op.outTensor(index).getProducer() == op
            assert op.outIndex(tensor) == index
            handle = graph.get_tensor(op.outId(index))
            assert list(handle.shape) == op.outShape(index)
            assert op.outInfo(index).dataType() is handle.dtype._pb_dtype
        assert not op.hasOutput(len(outputs))
        with pytest.raises(popart.popart_exception):
            op.outTensor(len(outputs))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_in_place_operators_say_what_they_change(row: Row) -> None:
    graph = built(row[2], row[3])
    op = graph._pb_graph.getOps()[-1]
    # A product of an optimiser, a copy and the like change their first input.
    is_update = op.isOptimizerOp() and op.opType() != "AdamUpdater"
    views = ("ReshapeInplace", "TransposeInplace", "SliceInplace", "ConcatInplace")
    is_view = op.opType() in (*views, "DetachInplace")
    writes = is_update or ("Inplace" in op.opType() and not is_view)
    assert op.isInplaceViewChange() == is_view
    if op.opType() != "MultiExchange":
        assert op.modifies() == writes
        assert op.modifiesIndex(0) == writes
        assert op.isOutplace() == (not writes and not is_view)
    if writes:
        target = op.inTensor(0)
        assert target.isModified()
        assert target.modifiedRegionsByOps([op.id]) == [
            _ir.view.Region.getFull(target.info.shape())
        ]
        assert op.overwritesTensor(target)


def test_gradient_classes_are_there_before_any_gradient() -> None:
    assert {"AddArg0GradOp", "MaxArgGradOp", "SplitGradOp"} <= set(dir(Op))
    ir = popxl.Ir()
    with ir.main_graph:
        spec = popxl.TensorSpec((2, 2), popxl.float32)
        graph = ir.create_graph(lambda x, w, b: x * w + b, spec, spec, spec)
        info = autodiff(graph)
        norm = ir.create_graph(
            lambda x, w, b: ops.group_norm(x, w, b, 1),
            spec,
            *[popxl.TensorSpec((2,), popxl.float32)] * 2,
        )
        group = autodiff(norm)
    assert not isinstance(info, dict)
    assert not isinstance(group, dict)
    for name in ("AddArg0Grad", "AddArg1Grad", "MulArg0Grad", "MulArg1Grad"):
        assert contains(info.graph, getattr(Op, f"{name}Op"), name)
    (found,) = group.graph._pb_graph.getOps()
    assert isinstance(found, Op.GroupNormGradOp)
    assert found.opType() == "GroupNormalizationGrad"
    assert found.outTensorCount() == 3


def test_only_operators_have_classes() -> None:
    for name in ("NothingOp", "Add", "HostLoadOp", "collectives.AddOp", "__path"):
        with pytest.raises(AttributeError):
            class_at(name)
    assert Op.AddOp is type(built(ops.add, (X, X))._pb_graph.getOps()[0])
    assert not issubclass(Op.AddLhsInplaceOp, Op.AddOp)


def test_settings_are_enumerations() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(X, name="x")
        with popxl.io_tiles(), popxl.name_scope("a"), popxl.ipu(2):
            y = ops.tanh(x)
        fragment = popxl.ExecutionContext.WeightsToHostFragment
        with popxl.context._execution_context(fragment):
            ops.matmul(x, x, partials_type=popxl.float16)
    first, second = ir.main_graph._pb_graph.getOps()
    settings = first.getSettings()
    assert settings.tileSet is _ir.TileSet.IO is popxl.TileSet.IO
    assert settings.executionContext == _ir.ExecutionContext.Normal
    assert (settings.vgraphId, settings.scope) == (2, "a")
    assert first.getOptionalVGraphId() == 2
    assert second.settings.executionContext is fragment
    assert second.getPartialsType() is Op.MatMulPartialsType.HALF
    assert x._pb_tensor.tensorType() is _ir.TensorType.Variable
    assert y._pb_tensor.tensorType() is _ir.TensorType.ActGrad
    assert x.dtype._pb_dtype is _ir.DataType.FLOAT
    assert popxl.dtype.as_dtype(_ir.DataType.FLOAT16) is popxl.float16


def test_operators_give_their_attributes_and_no_others() -> None:
    def last(build: Callable[..., Any], *arrays: Any) -> Any:
        return built(build, arrays)._pb_graph.getOps()[-1]

    average = last(lambda t, x: updates.accumulate_moving_average_(t, x, 0.9), X, X)
    assert average.getAccumulationType() is _ir.AccumulationType.MovingAverage
    assert average.getFactor().val() == 0.9
    scale = last(updates.accumulator_scale_, X, ONE)
    assert not scale.getFactor().isConst()
    loss = last(lambda p, at: ops.nll_loss(p, at, 1, "sum"), X, np.zeros(4, np.int32))
    assert loss.getReductionType() is _ir.ReductionType.Sum
    assert loss.hasIgnoreIndex()
    assert loss.getIgnoreIndex() == 1
    total = last(lambda t: ops.sum(t, [0, 1], keepdims=True), X)
    assert (total.getAxes(), total.getKeepDims()) == ([0, 1], True)
    assert last(lambda t, s: ops.dropout(t, s, 0.25), X, SEED).getRatio() == 0.25
    reduce = last(lambda t: collectives.replicated_all_reduce(t, "mean"), X)
    assert reduce.getCollectiveOp() is _ir.CollectiveOperator.Mean
    assert last(lambda t: ops.clip(t, -1, 2), X).getClipMax() == 2.0
    load = built(_load, ())
    assert load._pb_graph.getOps()[-1].getHostStreamTensorId() == "h2d_stream"
    assert not hasattr(total, "getRatio")


def test_a_loop_counts_from_its_trip_count_and_condition() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(X, name="x")
        info = ops.repeat_with_info(_empty(ir), 3, x)
        op = info._op
        assert isinstance(op, Op.LoopOp)
        assert op.getTripCountValue() == 3
        assert not op.hasInput(0)
        assert op.inId(2) == "x"
        assert not op.modifiesIndex(2)
        info.set_parent_input_modified(x)
        assert op.modifiesIndex(2)
        assert not op.modifiesIndex(0)
        assert op.subgraphOutToOpOutIndex(0, 1) == 0
    (wrapper,) = op.getCalledGraphs()
    assert wrapper.id.str() == op.getCalledGraphIds()[0]


def test_conditionals_map_indices_of_both_branches() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(X)
        graph = _empty(ir)
        condition = popxl.constant(True)
        info = ops.conditional_with_info(condition, graph, graph, [x], [x])
    op = info._op
    assert op.getThenGraph() == op.getElseGraph()
    assert [op.subgraphInToOpInIndex(n, 0) for n in (0, 1)] == [1, 2]
    assert [op.opInToSubgraphInIndex(n, 1 + n) for n in (0, 1)] == [0, 0]


def test_graphs_answer_by_index_and_id() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        graph = ir.create_graph(lambda x, y: (x + y, x), X32, X32)
        ops.call(graph, popxl.variable(X), popxl.variable(X))
    below = graph._pb_graph
    assert below.id == _ir.GraphId(graph.id)
    assert ir.main_graph._pb_graph.id == _ir.GraphId.root()
    ids = below.getInputIds()
    assert below.getInputIndex(ids[1]) == 1
    assert below.getInputId(0) == ids[0]
    assert below.getInputTensor(1).getGraphInputIndex() == 1
    assert below.getOutputIndex(ids[0]) == 1
    assert below.getInputTensor(0).isGraphOutput()
    assert not below.getOutputTensor(0).isGraphInput()
    with pytest.raises(popart.popart_exception):
        below.getOutputIndex(ids[1])
    assert ir.main_graph._pb_graph.getCalledGraphs() == [below]
    assert isinstance(ir._pb_ir, _ir.Ir)
    assert isinstance(below, _ir.Graph)
    assert isinstance(graph.inputs[0]._pb_tensor, _ir.Tensor)
    assert ir._pb_ir.getGraph(_ir.GraphId(graph.id)) == below
    new = _ir.Ir()
    assert isinstance(new.getSessionOptions(), popart.SessionOptions)
    assert popxl.Ir._from_pb(new).main_graph.tensors == ()


X32 = popxl.TensorSpec((4, 4), popxl.float32)


def test_programs_order_operators_by_constraints() -> None:
    ir = popxl.Ir()
    with ir.main_graph as graph:
        x = popxl.variable(np.zeros((), np.float32), name="x")
        out = popxl.d2h_stream((), popxl.float32)
        ops.host_store(out, x + 0)
        ops.add_(x, popxl.constant(np.float32(1)))
    add, store, write = graph._pb_graph.getOps()
    order = graph._pb_graph.topoCons()
    assert not order.hasConstraint(add)
    order.insert(write, add)
    assert order.contains(write, add)
    assert order.getBefores(add) == [write]
    assert order.getAfters(write) == [add]
    with pytest.raises(popart.popart_exception):
        order.insert(store, write)
    schedule = graph._pb_graph.getOpSchedule(_ir.RequireOptimalSchedule.Yes)
    assert not add.hasPipelineStage()
    assert not add.hasExecutionPhase()
    assert schedule.index(write) < schedule.index(add)
    with popxl.Session(ir) as session:
        assert float(session.run()[out]) == 1


def test_graphs_are_changed_operator_by_operator() -> None:
    ir = popxl.Ir()
    with ir.main_graph as main:
        graph = ir.create_graph(lambda x: ops.tanh(ops.relu(x)), X32)
        other = ir.create_empty_graph("other")
        with other:
            popxl.graph_input((4, 4), popxl.float32, "x")
        (relu, tanh) = graph._pb_graph.getOps()
        assert isinstance(relu, Op.ReluOp)
        copy = relu.cloneIntoGraph(other._pb_graph)
        assert type(copy) is Op.ReluOp
        assert copy.inTensorCount() == copy.outTensorCount() == 0
        copy.connectInTensor(0, other.inputs[0].id)
        copy.createAndConnectOutTensor(0, f"{other.id}/y")
        copy.setup()
        other._pb_graph.markAsOutput(f"{other.id}/y")
        # The graph without its relu.
        tanh.disconnectInTensor(0)
        tanh.connectInTensor(0, graph.inputs[0].id)
        relu.disconnectAllInputs()
        relu.disconnectAllOutputs()
        graph._pb_graph.eraseOp(relu.id)
        graph._pb_graph.removeIsolatedTensors()
        assert len(graph.tensors) == 2
        x = popxl.variable(np.full((4, 4), -1, np.float32))
        streams = [popxl.d2h_stream((4, 4), popxl.float32) for _ in range(2)]
        for stream, each in zip(streams, (graph, other), strict=True):
            ops.host_store(stream, ops.call(each, x)[0])
    assert contains(main, Op.CallOp, "Call")
    with popxl.Session(ir) as session:
        found = session.run()
    np.testing.assert_allclose(found[streams[0]], np.tanh(-1.0) * X, rtol=1e-6)
    np.testing.assert_array_equal(found[streams[1]], 0 * X)


def test_connected_operators_are_made_below() -> None:
    ir = popxl.Ir()
    with ir.main_graph as graph:
        x = popxl.variable(X, name="x")
        settings = popxl.context.get_current_context()._get_op_settings("add")
        below = graph._pb_graph
        op = below.createConnectedOp_AddOp(
            {0: x.id, 1: x.id},
            {0: "y"},
            _ir.OperatorIdentifier("ai.onnx", "Add", 6, _ir.NumInputs(2, 2), 1),
            settings,
        )
        assert isinstance(op, Op.AddOp)
        assert graph.get_tensor("y").shape == (4, 4)
        with pytest.raises(popart.popart_exception):
            below.createConnectedOp_ReduceSumOp({0: x.id}, {0: "z"}, None, settings)
        with pytest.raises(AttributeError):
            below.createConnectedOp_NothingOp({0: x.id}, {0: "z"}, None, settings)


def test_values_that_programs_make() -> None:
    full = _ir.view.Region.getFull([2, 3])
    assert (full.lower(), full.upper(), full.nelms()) == ([0, 0], [2, 3], 6)
    assert _ir.view.Region.getEmpty(2).isEmpty()
    assert full == _ir.view.Region([0, 0], [2, 3])
    groups = _ir.ReplicaGrouping(8, 2, 2)
    assert (groups.getNumGroups(), groups.getGroupSize()) == (4, 2)
    assert groups.getReplicasAt(1) == [1, 3]
    assert groups.getGroupIndexAt(6) == 2
    assert groups.getIndexInGroupAt(6) == 1
    assert groups.getReplicaAt(2, 1) == 6
    with pytest.raises(popart.popart_exception):
        groups.getReplicasAt(4)
    with pytest.raises(popart.popart_exception):
        _ir.ReplicaGrouping(8, 3, 2)
    assert popxl.Ir(8).replica_grouping(2, 2)._pb_replica_grouping == groups
    kind = _ir.ExpectedConnectionType.Fwd
    connection = _ir.ExpectedConnection("x", kind)
    assert (connection.fwdId, connection.type) == ("x", kind)
    info = _ir.BwdGraphInfo(_ir.GraphId("g"), [connection], [])
    assert info.bwdGraphId == "g"
    assert info.expectedInputs == [connection]
    patterns = _ir.patterns.Patterns(_ir.patterns.PatternsLevel.Minimal)
    assert not patterns.isPatternEnabled("Inplace")
    ir = popxl.Ir()
    ir._pb_ir.setPatterns(patterns)
    ir._pb_ir.applyPreAliasPatterns(ir.main_graph._pb_graph)
    ir._pb_ir.removeIsolatedGraphs()


def test_dot_files_are_written_below_too(tmp_path: Path) -> None:
    graph = built(ops.add, (X, X))
    below = graph.ir._pb_ir
    below.getSessionOptions().dotChecks = {"HERE"}
    below.getSessionOptions().logDir = str(tmp_path)
    below.dotCheckpoint(below, "here")
    below.dotCheckpoint(below, "elsewhere")
    assert [each.name for each in tmp_path.iterdir()] == ["here.dot"]


def test_operator_types_are_known() -> None:
    assert set(RECORDS) < set(popir.operator_types())
