import numpy as np
import pytest

import popxl
from popxl import ops

rng = np.random.default_rng(0)


def run(build, *arrays, kind="ipu_model"):
    ir = popxl.Ir()
    with ir.main_graph:
        vs = [popxl.variable(a, popxl.dtype.as_dtype(a.dtype)) for a in arrays]
        made = build(*vs)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        st = [popxl.d2h_stream(t.shape, t.dtype) for t in made]
        for s, t in zip(st, made):
            ops.host_store(s, t)
    with popxl.Session(ir, kind) as s:
        r = s.run()
    return [r[x] for x in st]


f32 = lambda *s: rng.normal(size=s).astype(np.float32)
A = f32(2, 3, 4)
NAMES = [
    (n, (n[:-1] + "_inplace_out") if n.endswith("_") else n + "_out")
    for n in "abs ceil floor sign cos sin tanh exp exp_ log negate relu relu_ sqrt gelu gelu_ geluerf geluerf_ swish swish_ clip isnan isinf isfinite detach detach_".split()
    if n not in ("detach_",)
]


@pytest.mark.parametrize("n,e", NAMES)
def test_un_name(n, e):
    ir = popxl.Ir()
    with ir.main_graph:
        with popxl.name_scope("q"):
            assert getattr(ops, n)(popxl.variable(1.5)).name == "q/" + e


def mk(fn, *arrays):
    ir = popxl.Ir()
    with ir.main_graph:
        vs = [popxl.variable(a, name=f"v{i}") for i, a in enumerate(arrays)]
        n = len(ir.main_graph.tensors)
        r = fn(*vs)
        return (
            r,
            len(ir.main_graph.tensors) - n,
            [o for o in ir.main_graph._pb_graph.getOps()],
            ir,
        )


X = f32(4, 4)
I = np.array([0, 1], np.int32)
S = np.array([1, 2], np.uint32)
B = np.ones(2, bool)
vu = ops.var_updates
ROWS = [
    ("logical_not", lambda x: ops.logical_not(x), (B,), "not_out", 1, "Not"),
    ("logical_not2", lambda x: ops.logical_not(x), (X,), "not_out", 2, "Not"),
    (
        "inc",
        lambda x: ops.increment_mod(x, 1, 3),
        (X,),
        "increment_mod_out",
        1,
        "IncrementMod",
    ),
    (
        "inc_",
        lambda x: ops.increment_mod_(x, 1, 3),
        (X,),
        "increment_mod_inplace_out",
        1,
        "IncrementModInplace",
    ),
    ("cast", lambda x: ops.cast(x, popxl.float16), (X,), "v0_float16", 1, "Cast"),
    ("ident", lambda x: ops.identity(x), (X,), "identity_v0", 1, "Identity"),
    ("ident2", lambda x: ops.identity(x, "foo"), (X,), "foo", 1, "Identity"),
    ("detach", ops.detach, (X,), "detach_out", 1, "Detach"),
    ("detach_", ops.detach_, (X,), "detach_out", 1, "DetachInplace"),
    ("print", ops.print_tensor, (X,), "print_out", 1, "PrintTensor"),
    ("add", ops.add, (X, X), "add_out", 1, "Add"),
    ("add_", ops.add_, (X, X), "add_lhs_inplace_out", 1, "AddLhsInplace"),
    ("sub", ops.sub, (X, X), "sub_out", 1, "Sub"),
    ("mul", ops.mul, (X, X), "mul_out", 1, "Mul"),
    ("div", ops.div, (X, X), "div_out", 1, "Div"),
    ("fmod", ops.fmod, (X, X), "fmod_out", 1, "Fmod"),
    ("pow", ops.pow, (X, X), "pow_out", 1, "Pow"),
    ("pow2", lambda x: ops.pow(x, 2.0), (X,), "pow_out", 2, "Pow"),
    ("sa", ops.scaled_add, (X, X), "scaled_add_out", 1, "ScaledAdd"),
    ("sa_", ops.scaled_add_, (X, X), "scaled_add__v0", 1, "ScaledAddLhsInplace"),
    ("max", lambda a, b: ops.maximum(a, b), (X, X), "maximum_out", 1, "Max"),
    ("eq", ops.equal, (X, X), "equal_out", 1, "Equal"),
    ("gt", ops.greater, (X, X), "greater_out", 1, "Greater"),
    ("and", ops.logical_and, (B, B), "and_out", 1, "And"),
    ("or", ops.logical_or, (B, B), "or_out", 1, "Or"),
    (
        "where",
        lambda x: ops.where(x > 0 if 0 else ops.greater(x, x), x, x),
        (X,),
        "where_out",
        2,
        "Where",
    ),
    ("matmul", ops.matmul, (X, X), "matmul_out", 1, "MatMul"),
    ("sum", lambda x: ops.sum(x, 0), (X,), "sum_out", 1, "ReduceSum"),
    ("mean", lambda x: ops.mean(x, 0), (X,), "mean_out", 1, "ReduceMean"),
    ("rmax", lambda x: ops.max(x, 0), (X,), "max_out", 1, "ReduceMax"),
    ("rmin", lambda x: ops.min(x, 0), (X,), "min_out", 1, "ReduceMin"),
    ("prod", lambda x: ops.prod(x, 0), (X,), "prod_out", 1, "ReduceProd"),
    ("l1", lambda x: ops.l1(x, 0), (X,), "l1_out", 1, "ReduceL1"),
    ("l2", lambda x: ops.l2(x, 0), (X,), "l2_out", 1, "ReduceL2"),
    ("logsum", lambda x: ops.logsum(x, 0), (X,), "logsum_out", 1, "ReduceLogSum"),
    ("lse", lambda x: ops.logsumexp(x, 0), (X,), "logsumexp_out", 1, "ReduceLogSumExp"),
    ("ssq", lambda x: ops.sumsquare(x, 0), (X,), "sumsquare_out", 1, "ReduceSumSquare"),
    ("median", lambda x: ops.median(x, 0), (X,), "median_out", 2, "ReduceMedian"),
    ("argmax", lambda x: ops.argmax(x), (X,), "argmax_out", 1, "ArgMax"),
    ("argmin", lambda x: ops.argmin(x), (X,), "argmin_out", 1, "ArgMin"),
    (
        "topk",
        lambda x: ops.topk(x, 2, 0, True, True)[0],
        (X,),
        "topk_out_value",
        2,
        "TopK",
    ),
    (
        "topk1",
        lambda x: ops.topk(x, 2, 0, True, True)[1],
        (X,),
        "topk_out_indices",
        2,
        "TopK",
    ),
    ("cumsum", lambda x: ops.cumsum(x), (X,), "cumsum_out", 2, "CumSum"),
    (
        "hist",
        lambda x: ops.histogram(x, [0.0, 1.0], False),
        (X,),
        "histogram_out",
        1,
        "Histogram",
    ),
    ("lamb", ops.lamb_square, (X,), "lamb_square_out", 1, "LambSquare"),
    ("reshape", lambda x: x.reshape((16,)), (X,), "v0_reshaped", 1, "Reshape"),
    ("reshape_", lambda x: x.reshape_((16,)), (X,), "v0_reshaped", 1, "ReshapeInplace"),
    ("T", lambda x: x.T, (X,), "v0_T", 1, "Transpose"),
    ("T_", lambda x: x.T_, (X,), "v0_T", 1, "TransposeInplace"),
    ("squeeze", ops.squeeze, (X,), None, 1, "Reshape"),
    ("slice", lambda x: ops.slice(x, 0, 1), (X,), "slice_out", 1, "Slice"),
    ("slice_", lambda x: ops.slice_(x, 0, 1), (X,), "slice_out", 1, "SliceInplace"),
    ("subs", lambda x: ops.subsample(x, 2), (X,), "subsample_out", 1, "Subsample"),
    ("split", lambda x: ops.split(x, 2)[1], (X,), "v0_split_1", 2, "Split"),
    ("concat", lambda x: ops.concat([x, x]), (X,), "concat_out", 1, "Concat"),
    ("concat_", lambda x: ops.concat_([x, x]), (X,), "concat_out", 1, "ConcatInplace"),
    ("gather", ops.gather, (X, I), "gather_out", 1, "Gather"),
    ("tied", ops.tied_gather, (X, I), "tiedgather_out", 1, "PopartTiedGather"),
    ("ggather", ops.groupedgather, (X, I), "gather_out", 1, "Gather"),
    (
        "dynslice",
        lambda x: ops.dynamic_slice(
            x, popxl.constant([1], popxl.uint32), [0], [2], True
        ),
        (X,),
        "dynamic_slice_out",
        2,
        "DynamicSlice",
    ),
    ("init", lambda: ops.init((2,), popxl.float32), (), "t", 1, "Init"),
    ("init2", lambda: ops.init((2,), popxl.float32, "zz"), (), "zz", 1, "Init"),
    ("softmax", lambda x: ops.softmax(x, 1), (X,), "softmax_out", 1, "Softmax"),
    (
        "gn",
        lambda x: ops.group_norm(
            x,
            popxl.constant(np.ones(4, np.float32)),
            popxl.constant(np.ones(4, np.float32)),
            2,
        ),
        (X,),
        "group_norm_out",
        5,
        "GroupNormalization",
    ),
    (
        "ln",
        lambda x: ops.layer_norm(
            x,
            popxl.constant(np.ones(4, np.float32)),
            popxl.constant(np.ones(4, np.float32)),
        ),
        (X,),
        "group_norm_out",
        5,
        "GroupNormalization",
    ),
    (
        "nll",
        lambda x: ops.nll_loss(x, popxl.constant(np.zeros(4, np.int32))),
        (X,),
        "loss",
        2,
        "Nll",
    ),
    (
        "nllg",
        lambda x: ops.nll_loss_with_softmax_grad(
            x, popxl.constant(np.zeros(4, np.int32))
        )[1],
        (X,),
        "dx",
        4,
        "NlllWithSoftmaxGradDirect",
    ),
    (
        "dropout",
        lambda x, s: ops.dropout(x, s, 0.1),
        (X, S),
        "dropout_out",
        1,
        "Dropout",
    ),
    (
        "sdropout",
        lambda x, s: ops.shaped_dropout(x, s, (4, 1), 0.1),
        (X, S),
        "shapeddropout_out",
        1,
        "ShapedDropout",
    ),
    (
        "ru",
        lambda s: ops.random_uniform(s, (2,)),
        (S,),
        "random_uniform_out",
        1,
        "RandomUniform",
    ),
    (
        "rn",
        lambda s: ops.random_normal(s, (2,)),
        (S,),
        "random_normal_out",
        1,
        "RandomNormal",
    ),
    (
        "srs",
        lambda s: ops.split_random_seed(s, 3)[0],
        (S,),
        "modified_seed",
        6,
        "ModifyRandomSeed",
    ),
    (
        "scatter",
        lambda x: ops.scatter(
            x,
            popxl.constant(np.zeros((1, 4), np.int32)),
            popxl.constant(np.zeros((1, 4), np.float32)),
        ),
        (X,),
        "scatter_out",
        3,
        "Scatter",
    ),
    (
        "screduce",
        lambda x: ops.scatter_reduce(
            x, popxl.constant(np.zeros((4,), np.int32)), "sum", axis_size=3
        ),
        (X,),
        "scatter_reduce_out",
        2,
        "ScatterReduce",
    ),
    (
        "onehot",
        lambda i: ops.onehot(
            i, popxl.constant(4, popxl.int32), popxl.constant([0.0, 1.0]), -1
        ),
        (I,),
        "onehot_out",
        3,
        "OneHot",
    ),
    ("iotile", ops.io_tile_copy, (X,), "v0_iotilecopy", 1, "IoTileCopy"),
    ("ipuc", lambda x: ops.ipu_copy(x, 1, 0), (X,), "v0_c1", 1, "IpuCopy"),
    (
        "acc",
        lambda x, y: vu.accumulate_(x, y),
        (X, X),
        "accumulate__v0",
        1,
        "Accumulate",
    ),
    (
        "accsq",
        lambda x, y: vu.accumulate_square_(x, y),
        (X, X),
        "accumulate_square__v0",
        1,
        "Accumulate",
    ),
    (
        "accm",
        lambda x, y: vu.accumulate_mean_(x, y, 1.0),
        (X, X),
        "accumulate_mean__v0",
        None,
        "Accumulate",
    ),
    (
        "accma",
        lambda x, y: vu.accumulate_moving_average_(x, y, 0.5),
        (X, X),
        "accumulate_moving_avg__v0",
        1,
        "Accumulate",
    ),
    (
        "accmas",
        lambda x, y: vu.accumulate_moving_average_square_(x, y, 0.5),
        (X, X),
        "accumulate_moving_avg_square__v0",
        1,
        "Accumulate",
    ),
    (
        "sacc",
        lambda x, i: vu.sparse_accumulate_(
            x, popxl.constant(np.ones((2, 4), np.float32)), i
        ),
        (X, I),
        "sparse_accumulate__v0",
        2,
        "PopartSparseAccumulate",
    ),
    (
        "ascale",
        lambda x: vu.accumulator_scale_(x, 0.5),
        (X,),
        "accumulator_scale__v0",
        1,
        "AccumulatorScale",
    ),
    (
        "azero",
        vu.accumulator_zero_,
        (X,),
        "accumulator_scale__v0",
        1,
        "AccumulatorScale",
    ),
    ("cvu", vu.copy_var_update_, (X, X), "updated__v0", 1, "CopyVarUpdate"),
    ("adam", lambda a, b: vu.adam_updater(a, b), (X, X), "Updater", 1, "AdamUpdater"),
    ("lambu", lambda a, b: vu.lamb_updater(a, b), (X, X), "Updater", 1, "AdamUpdater"),
    (
        "avu",
        lambda t, x: vu.adam_var_update(
            t, x, popxl.constant(1.0), popxl.constant(1.0), 0.1, 1.0
        ),
        (X, X),
        "adam_var_update_out",
        3,
        "AdamVarUpdate",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[r[0] for r in ROWS])
def test_names_counts(row):
    _, fn, arrays, name, count, type_ = row
    r, n, o, ir = mk(fn, *arrays)
    assert o[-1].opType() == type_
    if name:
        assert r.name == name
    if count:
        assert n == count
