"""Modules by the original's paths: one for each operator there, one for each family
here.

`from popxl.ops.add import add_` must find a module although `popxl.ops.add` is the
function. Such a module is entered into `sys.modules` only, never into the package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

#: Modules of several names, or of names that `popxl.ops` does not have.
_OPERATORS = {
    "argminmax": "argmax argmin",
    "batch_norm": "batch_norm_inference",
    "cast": "cast pow2scale_cast_to_fp8 pow2scale_cast_from_fp8 pow2scale_then_cast "
    "cast_then_pow2scale",
    "clip": "clip clamp",
    "code_copy": "code_copy remote_code_load",
    "conv": "PadType conv conv_pow2scaled conv_transpose conv_transpose_pow2scaled "
    "multi_conv_options",
    "gather": "gather groupedgather tied_gather",
    "group_norm": "group_norm layer_norm",
    "identity": "identity rename",
    "interpolate": "interpolate InterpolateType NearestType "
    "CoordinateTransformationType",
    "lamb": "lamb_square",
    "matmul": "matmul matmul_pow2scaled",
    "max": "max maximum",
    "negative_log_likelihood": "REDUCTION_TYPE nll_loss nll_loss_with_softmax_grad",
    "pool": "average_pool max_pool",
    "print_tensor": "print_tensor PrintTensorFmt FloatFormat",
    "random": "dropout shaped_dropout random_normal random_uniform",
    "remote_load": "remote_load remote_load_",
    "roialign": "roi_align",
}
_COLLECTIVES = {
    "all_reduce": "all_reduce all_reduce_identical_inputs "
    "all_reduce_identical_grad_inputs",
    "replicated_all_gather": "replicated_all_gather",
    "replicated_all_reduce": "replicated_all_reduce replicated_all_reduce_",
    "replicated_reduce_scatter": "replicated_reduce_scatter replica_sharded_slice "
    "replicated_slice",
}
_UPDATES = {
    "accumulate": "accumulate_ accumulate_square_ accumulate_mean_ "
    "accumulate_moving_average_ accumulate_moving_average_square_ "
    "sparse_accumulate_ accumulator_scale_ accumulator_zero_",
    "adam_updater": "adam_updater adamax_updater lamb_updater",
    "adam_var_update": "adam_var_update",
    "copy_var_update": "copy_var_update_",
    "utils": "handle_optimizer_value",
}


def enter(names: Iterable[str], found: Mapping[str, Any]) -> None:
    """Enter the modules of all operators; `names` are those with a module each."""
    given = dict(found)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("popxl.ops."):
            given = {**vars(module), **given}
    # A module holds both forms of an operator: add and add_.
    single = {
        base: " ".join(name for name in (base, f"{base}_") if name in given)
        for base in (name.rstrip("_") for name in names)
    }
    for package, modules in (
        ("popxl.ops", {**single, **_OPERATORS}),
        ("popxl.ops.collectives", _COLLECTIVES),
        ("popxl.ops.var_updates", _UPDATES),
    ):
        for name, members in modules.items():
            _enter(f"{package}.{name}", members.split(), given)


def _enter(path: str, members: Iterable[str], given: Mapping[str, Any]) -> None:
    if path in sys.modules:
        return
    module = ModuleType(path, f"`{path}` by the original's path.")
    for member in members:
        setattr(module, member, given[member])
    sys.modules[path] = module
