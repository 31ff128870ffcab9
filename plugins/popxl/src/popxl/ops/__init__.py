"""All operators, flat."""

# ruff: noqa: I001 - one import for the operators of a family
from __future__ import annotations

from types import ModuleType as _ModuleType

from popxl.ops import collectives as collectives, var_updates as var_updates
from popxl.ops._indexing import index as _index
from popxl.ops._modules import enter as _enter_modules
from popxl.ops.call import (
    CallSiteInfo as CallSiteInfo,
    call as call,
    call_with_info as call_with_info,
    repeat as repeat,
    repeat_with_info as repeat_with_info,
)
from popxl.ops.conditional import (
    ConditionalSiteInfo as ConditionalSiteInfo,
    conditional as conditional,
    conditional_with_info as conditional_with_info,
)
from popxl.ops.convolutions import (
    PadType as PadType,
    conv as conv,
    conv_pow2scaled as conv_pow2scaled,
    conv_transpose as conv_transpose,
    conv_transpose_pow2scaled as conv_transpose_pow2scaled,
)
from popxl.ops.elementwise import (
    abs as abs,
    add as add,
    add_ as add_,
    ceil as ceil,
    clamp as clamp,
    clip as clip,
    cos as cos,
    detach as detach,
    detach_ as detach_,
    div as div,
    equal as equal,
    exp as exp,
    exp_ as exp_,
    floor as floor,
    fmod as fmod,
    gelu as gelu,
    gelu_ as gelu_,
    geluerf as geluerf,
    geluerf_ as geluerf_,
    greater as greater,
    identity as identity,
    increment_mod as increment_mod,
    increment_mod_ as increment_mod_,
    io_tile_copy as io_tile_copy,
    ipu_copy as ipu_copy,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    log as log,
    log2 as log2,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    maximum as maximum,
    mul as mul,
    negate as negate,
    pow as pow,
    print_tensor as print_tensor,
    relu as relu,
    relu_ as relu_,
    rename as rename,
    scaled_add as scaled_add,
    scaled_add_ as scaled_add_,
    sign as sign,
    sin as sin,
    sqrt as sqrt,
    sub as sub,
    swish as swish,
    swish_ as swish_,
    tanh as tanh,
    where as where,
)
from popxl.ops.float8 import (
    cast_then_pow2scale as cast_then_pow2scale,
    matmul_pow2scaled as matmul_pow2scaled,
    pow2scale_cast_from_fp8 as pow2scale_cast_from_fp8,
    pow2scale_cast_to_fp8 as pow2scale_cast_to_fp8,
    pow2scale_then_cast as pow2scale_then_cast,
)
from popxl.ops.indexing import (
    dynamic_slice as dynamic_slice,
    dynamic_update as dynamic_update,
    dynamic_update_ as dynamic_update_,
    gather as gather,
    groupedgather as groupedgather,
    onehot as onehot,
    scatter as scatter,
    tied_gather as tied_gather,
)
from popxl.ops.networks import (
    average_pool as average_pool,
    batch_norm_inference as batch_norm_inference,
    group_norm as group_norm,
    layer_norm as layer_norm,
    matmul as matmul,
    max_pool as max_pool,
    nll_loss as nll_loss,
    nll_loss_with_softmax_grad as nll_loss_with_softmax_grad,
    softmax as softmax,
)
from popxl.ops.random_seed import (
    dropout as dropout,
    random_normal as random_normal,
    random_uniform as random_uniform,
    shaped_dropout as shaped_dropout,
    split_random_seed as split_random_seed,
)
from popxl.ops.reductions import (
    argmax as argmax,
    argmin as argmin,
    cumsum as cumsum,
    histogram as histogram,
    l1 as l1,
    l2 as l2,
    lamb_square as lamb_square,
    logsum as logsum,
    logsumexp as logsumexp,
    max as max,
    mean as mean,
    median as median,
    min as min,
    prod as prod,
    sum as sum,
    sumsquare as sumsquare,
    topk as topk,
)
from popxl.ops.remote_memory import (
    load_shard as _load_shard,
    remote_load as remote_load,
    remote_load_ as remote_load_,
    remote_store as remote_store,
)
from popxl.ops.resampling import interpolate as interpolate, roi_align as roi_align
from popxl.ops.scatter_reduce import scatter_reduce as scatter_reduce
from popxl.ops.shapes import (
    concat as concat,
    concat_ as concat_,
    flatten as flatten,
    flatten_ as flatten_,
    init as init,
    reshape as reshape,
    reshape_ as reshape_,
    slice as slice,
    slice_ as slice_,
    split as split,
    squeeze as squeeze,
    subsample as subsample,
    transpose as transpose,
    transpose_ as transpose_,
)
from popxl.ops.streams import (
    host_load as host_load,
    host_store as host_store,
    remote_code_load as remote_code_load,
)
from popxl.ops.utils import cast as cast
from popxl.tensor import enter_operators as _enter_operators

#: All that is imported above, without the modules of the families.
__all__ = tuple(
    sorted(
        name
        for name, value in globals().items()
        if not name.startswith("_")
        and name != "annotations"
        and (not isinstance(value, _ModuleType) or value in (collectives, var_updates))
    )
)

_enter_modules(
    (
        name
        for name in __all__
        if str(getattr(globals()[name], "__module__", "")).startswith(__name__)
    ),
    globals(),
)
_enter_operators(
    {name: globals()[name] for name in __all__}
    | {"getitem": _index, "load_shard": _load_shard}
)
