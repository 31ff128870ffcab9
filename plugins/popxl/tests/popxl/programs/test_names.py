import importlib
import inspect

import pytest

import popxl
from popxl import ops


def test_deep_imports():
    from popxl.transforms import autodiff
    from popxl.transforms.autodiff import autodiff as a1

    assert callable(autodiff)
    assert a1 is autodiff
    assert callable(popxl.ops.call)
    from popxl.utils import HW_DEVICE_CONNECTION_TIMEOUT

    assert HW_DEVICE_CONNECTION_TIMEOUT == 10000
    from popxl.typing_ import NewAliasAnnotation

    NewAliasAnnotation("x", int)


OPS_IN_MODULES = "abs add argmax argmin average_pool batch_norm_inference call cast clip concat conditional conv conv_transpose cos cumsum detach div dropout dynamic_slice dynamic_update equal exp flatten fmod gather gelu greater group_norm histogram host_load host_store identity increment_mod init interpolate io_tile_copy ipu_copy isfinite isinf isnan lamb_square layer_norm log log2 logical_and logical_not logical_or matmul max max_pool maximum mean median min mul negate nll_loss onehot pow print_tensor random_normal random_uniform relu remote_load remote_store reshape roi_align scaled_add scatter shaped_dropout sign sin slice softmax split sqrt squeeze sub subsample sum swish tanh tied_gather topk transpose where scatter_reduce random_seed utils".split()


@pytest.mark.parametrize("n", OPS_IN_MODULES)
def test_op_module(n):
    m = importlib.import_module(f"popxl.ops.{n}")
    if n not in ("random_seed", "utils"):
        assert callable(getattr(popxl.ops, n)), n


def test_toplevel():
    names = "get_current_graph get_main_graph get_ir gcg gmg gir in_sequence name_scope ipu io_tiles dtype bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 half float8_143 float8_152 float16 float float32 double float64 complex64 complex128 Graph Ir Module create_seeds RemoteBuffer remote_buffer ReplicaGrouping HostToDeviceStream DeviceToHostStream h2d_stream d2h_stream Tensor variable remote_variable remote_replica_sharded_variable replica_sharded_variable constant graph_input graph_output TensorByRef TensorSpec TensorStorage TensorLocation ReplicatedTensorSharding TileSet ExecutionContext Session".split()
    for n in names:
        assert hasattr(popxl, n), n
        assert n in popxl.__all__, n
    assert isinstance(popxl.__version__, str)
    for n in "replica_sharded_buffer transforms tensor dtypes utils streams context graph ir module session random_seed errors typing_ testing fp8_utils tensorlocation replica_grouping remote_buffer ops".split():
        assert hasattr(popxl, n), n
    assert not hasattr(popxl, "Variable")


SIGS = {
    "clip": "(t, min=-inf, max=inf)",
    "topk": "(t, k, axis, largest, sorted, available_memory_proportion=None)",
    "argmax": "(t, dim=0, keepdim=False)",
    "sum": "(t, axis=None, keepdims=False)",
    "slice": "(t, start=None, stop=None, step=None, axis=None)",
    "gather": "(t, indices, axis=0, available_memory_proportion=None, zero_OOR=False)",
    "groupedgather": "(t, indices, axis=0, group_size=1, available_memory_proportion=None, zero_OOR=False)",
    "tied_gather": "(t, indices, axis=0, available_memory_proportion=None, zero_OOR=False)",
    "scatter": "(t, indices, values, axis=0, available_memory_proportion=None)",
    "scatter_reduce": "(data, indices, reduction, initial_values=None, axis=0, axis_size=None, enable_index_broadcast=True, available_memory_proportion=None)",
    "onehot": "(t, num_classes, values, axis)",
    "dynamic_slice": "(t, index, axes, sizes, no_overlap)",
    "dynamic_update": "(t, index, t_update, axes, sizes, no_overlap)",
    "dynamic_update_": "(t, index, t_update, axes, sizes, no_overlap)",
    "init": "(shape, dtype, name=None, init_type='zero', meta_shape=None)",
    "group_norm": "(t, weight, bias, num_groups, eps=1e-05)",
    "layer_norm": "(t, weight, bias, eps=1e-05)",
    "batch_norm_inference": "(t, scale, bias, mean, var, epsilon=1e-05, momentum=0.9)",
    "interpolate": "(t, scale_factor=(1.0, 1.0, 1.0, 1.0), mode='nearest', nearest_mode='round_prefer_floor', coordinate_transformation_mode='half_pixel')",
    "roi_align": "(t, rois, batch_index, output_size, spatial_scale, sampling_ratio)",
    "nll_loss": "(probs, labels, ignore_index=None, reduction='mean', log_prob=False)",
    "nll_loss_with_softmax_grad": "(probs, labels, loss_grad=1, ignore_index=None, reduction='mean')",
    "dropout": "(t, seed_tensor, p)",
    "shaped_dropout": "(t, seed_tensor, shape, ratio)",
    "random_uniform": "(seed_tensor, shape, low=0.0, high=1.0, dtype=popxl.dtypes.float32)",
    "random_normal": "(seed_tensor, shape, mean=0.0, std=1.0, dtype=popxl.dtypes.float32)",
    "split_random_seed": "(seed, n=2)",
    "host_load": "(h2d_stream, name=None)",
    "host_store": "(d2h_stream, t)",
    "remote_load": "(remote_buffer, offset, name=None)",
    "remote_load_": "(remote_buffer, offset, t)",
    "remote_store": "(remote_buffer, offset, t)",
    "ipu_copy": "(t, destination, source=None)",
    "remote_code_load": "(graph, destination)",
    "conditional": "(cond, then_branch, else_branch, then_inputs=None, else_inputs=None, then_inputs_dict=None, else_inputs_dict=None)",
    "repeat": "(graph, repeat_count, *inputs, inputs_dict=None)",
    "repeat_with_info": "(graph, repeat_count, *inputs, inputs_dict=None, check_inputs=True)",
    "call": "(graph, *inputs, inputs_dict=None)",
    "scaled_add": "(X, Y, a=1.0, b=1.0)",
    "greater": "(input, other)",
    "add": "(lhs, rhs)",
    "pow": "(t, e)",
    "increment_mod": "(t, increment, modulus)",
    "cast": "(t, data_type)",
    "identity": "(t, output_name=None)",
    "maximum": "(*ts)",
    "where": "(condition, lhs, rhs)",
    "matmul": "(lhs, rhs, available_memory_proportion=None, output_type=None, partials_type=None)",
    "matmul_pow2scaled": "(lhs, rhs, log2_scale, available_memory_proportion=None)",
    "median": "(t, axis=None, keepdims=False)",
    "cumsum": "(t, dim=0)",
    "histogram": "(t, levels, absolute_of_input)",
    "lamb_square": "(t)",
    "reshape": "(t, shape)",
    "transpose": "(t, permutation=None)",
    "squeeze": "(t, axes=None)",
    "subsample": "(t, strides)",
    "split": "(t, splits, axis=0)",
    "concat": "(ts, axis=0)",
    "max_pool": "(t, kernel_size, stride=None, padding=None, out_pads=None, dilation=None, in_dilations=None, auto_pad='not_set', ceil_mode=False, storage_order='row')",
    "conv_transpose": "(t, weight, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1, pad_type='not_set', output_padding=(), output_shape=(), available_memory_proportions=None, partials_types=None, enable_conv_dithering=None)",
    "pow2scale_cast_to_fp8": "(t, log2_scale, data_type)",
    "softmax": "(t, axis)",
}


@pytest.mark.parametrize("n", SIGS)
def test_sig(n):
    s = inspect.signature(getattr(ops, n))
    s = s.replace(
        parameters=[p.replace(annotation=p.empty) for p in s.parameters.values()],
        return_annotation=s.empty,
    )
    assert str(s) == SIGS[n]


VU = {
    "accumulate_": "(t, X, f=None)",
    "accumulate_square_": "(t, X, f=1.0)",
    "accumulate_mean_": "(t, X, step)",
    "accumulate_moving_average_": "(t, X, f)",
    "accumulate_moving_average_square_": "(t, X, f)",
    "sparse_accumulate_": "(t, X, indices, axis=0, f=None, W=None)",
    "accumulator_scale_": "(t, f)",
    "accumulator_zero_": "(t)",
    "adam_updater": "(acc_first_order, acc_second_order, weight=None, time_step=None, weight_decay=None, beta1=None, beta2=None, epsilon=1e-07)",
    "lamb_updater": "(acc_first_order, acc_second_order, weight=None, time_step=None, weight_decay=None, beta1=None, beta2=None, epsilon=1e-07)",
    "adamax_updater": "(acc_first_order, acc_second_order, weight=None, time_step=None, weight_decay=None, beta1=0.9, epsilon=1e-07)",
    "adam_var_update": "(t, x, r1, r2, learning_rate=None, max_weight_norm=None)",
    "copy_var_update_": "(t, X)",
}


@pytest.mark.parametrize("n", VU)
def test_vu_sig(n):
    s = inspect.signature(getattr(ops.var_updates, n))
    s = s.replace(
        parameters=[p.replace(annotation=p.empty) for p in s.parameters.values()],
        return_annotation=s.empty,
    )
    assert str(s) == VU[n]


COL = {
    "replicated_all_reduce": "(t, op='add', group=None)",
    "replicated_all_reduce_": "(t, op='add', group=None)",
    "replicated_all_gather": "(t, axis=0, group=None, output_shape='auto')",
    "replicated_reduce_scatter": "(t, op='add', group=None, configure_output_for_replicated_tensor_sharding=False)",
    "replica_sharded_slice": "(t, group=None)",
    "replicated_slice": "(t, axis=0, group=None)",
    "all_reduce": "(ts, ipus=None, op='add')",
    "all_reduce_identical_inputs": "(ts, ipus=None, op='add')",
    "all_reduce_identical_grad_inputs": "(ts, ipus=None, op='add')",
}


@pytest.mark.parametrize("n", COL)
def test_col_sig(n):
    s = inspect.signature(getattr(ops.collectives, n))
    s = s.replace(
        parameters=[p.replace(annotation=p.empty) for p in s.parameters.values()],
        return_annotation=s.empty,
    )
    assert str(s) == COL[n]


def test_same():
    assert ops.rename is ops.identity
    assert ops.clamp is ops.clip
