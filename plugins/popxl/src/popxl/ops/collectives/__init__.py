"""Reductions and exchanges across replicas, and across the devices of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from popxl.context import get_ir
from popxl.errors import UndefinedValue
from popxl.ops.collectives.collectives import CollectiveOps, to_collective_op
from popxl.ops.collectives.collectives import CommGroup as CommGroup
from popxl.ops.collectives.collectives import CommGroupType as CommGroupType
from popxl.ops.utils import check_inputs, emit
from popxl.replica_grouping import ReplicaGrouping
from popxl.tensor import Tensor

#: Names in messages, for operators whose results are named after their input.
_OPERATORS = {
    "ReplicatedAllGather": "replicated_all_gather",
    "ReplicatedSlice": "replicated_slice",
}
_Output = Literal["auto", "new_axis", "concat", "meta_shape"]


def _reduction(op: str) -> str:
    to_collective_op(op)
    return op


def _members(group: ReplicaGrouping | None) -> dict[str, Any]:
    """Return the cooperating replicas as attributes of an operator."""
    groups = get_ir().replica_grouping() if group is None else group
    if not groups.is_const:
        raise NotImplementedError(
            "Collectives over a ReplicaGrouping without a constant stride"
        )
    return {"group_size": groups.group_size, "members": groups._groups}


def _named(t: Tensor, ending: str) -> str:
    """Return the name of a result that is called after `t`."""
    return f"{t.name}_{ending}" if isinstance(t, Tensor) else ending


def _emit(type_: str, t: Tensor, name: str, **attributes: Any) -> Tensor:
    called = _OPERATORS.get(type_, name.removesuffix("_out"))
    operator = f"{called} {t.id!r}" if isinstance(t, Tensor) else ""
    given = {**attributes, "operator": operator}
    return emit(type_, {"t": t}, [name], given)[0]


def replicated_all_reduce(
    t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None
) -> Tensor:
    """Return `t` of all members of the group, reduced."""
    given = {"op": _reduction(op), **_members(group)}
    return _emit("ReplicatedAllReduce", t, "replicated_all_reduce_out", **given)


def replicated_all_reduce_(
    t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None
) -> Tensor:
    """Reduce `t` of all members of the group, into `t`."""
    given = {"op": _reduction(op), **_members(group)}
    name = "replicated_all_reduce_inplace_out"
    return _emit("ReplicatedAllReduceInplace", t, name, **given)


def replicated_all_gather(
    t: Tensor,
    axis: int = 0,
    group: ReplicaGrouping | None = None,
    output_shape: _Output = "auto",
) -> Tensor:
    """Return `t` of all members: joined along `axis`, along a new axis, or as the whole
    of their shards. 'auto' chooses the whole if `t` is a shard.
    """
    if output_shape not in get_args(_Output):
        raise ValueError(f"Invalid output_shape: {output_shape!r}")
    if not isinstance(axis, int):
        raise ValueError(f"axis must be an integer, found {axis!r}")
    if output_shape == "auto":
        is_shard = isinstance(t, Tensor) and bool(t.meta_shape)
        output_shape = "meta_shape" if is_shard else "concat"
    given = {"axis": axis, "output": output_shape, **_members(group)}
    return _emit("ReplicatedAllGather", t, _named(t, "all_gathered"), **given)


def replicated_reduce_scatter(
    t: Tensor,
    op: CollectiveOps = "add",
    group: ReplicaGrouping | None = None,
    configure_output_for_replicated_tensor_sharding: bool = False,
) -> Tensor:
    """Return this member's share of the elements of `t`, reduced over all members."""
    return _emit(
        "ReplicatedReduceScatter",
        t,
        "replicated_reduce_scatter_out",
        op=_reduction(op),
        **_members(group),
        is_shard=bool(configure_output_for_replicated_tensor_sharding),
    )


def replica_sharded_slice(t: Tensor, group: ReplicaGrouping | None = None) -> Tensor:
    """Return the member's share of the elements of `t`, as a shard."""
    given = {"op": "local", **_members(group), "is_shard": True}
    return _emit("ReplicatedReduceScatter", t, "replica_sharded_slice_out", **given)


def replicated_slice(
    t: Tensor, axis: int = 0, group: ReplicaGrouping | None = None
) -> Tensor:
    """Return the member's block of `axis`, which is dropped if the block has length
    one.
    """
    members = _members(group)
    size = members["group_size"]
    if isinstance(t, Tensor) and t.rank and t.shape[axis] % size:
        raise ValueError(
            f"axis {axis} of {t.shape} cannot be split into {size} equal blocks"
        )
    given = {"axis": axis, **members}
    return _emit("ReplicatedSlice", t, _named(t, "replicated_slice"), **given)


def all_reduce(
    ts: Iterable[Tensor], ipus: Iterable[int] | None = None, op: CollectiveOps = "add"
) -> list[Tensor]:
    """Return the tensors of several devices, reduced; the result on each."""
    return _all_reduce(ts, ipus, op)


def all_reduce_identical_inputs(
    ts: Iterable[Tensor], ipus: Iterable[int] | None = None, op: CollectiveOps = "add"
) -> list[Tensor]:
    """Return the equal tensors unchanged; gradients are reduced."""
    return _all_reduce(ts, ipus, op, forward_is_identity=True)


def all_reduce_identical_grad_inputs(
    ts: Iterable[Tensor], ipus: Iterable[int] | None = None, op: CollectiveOps = "add"
) -> list[Tensor]:
    """Return the tensors reduced; the equal gradients pass unchanged."""
    return _all_reduce(ts, ipus, op, backward_is_identity=True)


def _all_reduce(
    ts: Iterable[Tensor],
    ipus: Iterable[int] | None,
    op: str,
    forward_is_identity: bool = False,
    backward_is_identity: bool = False,
) -> list[Tensor]:
    tensors = list(ts)
    check_inputs(**{f"ts[{n}]": tensor for n, tensor in enumerate(tensors)})
    places = _places(tensors) if ipus is None else [int(n) for n in ipus]
    if len(places) != len(tensors):
        raise ValueError(
            f"Number of tensors ({len(tensors)}) and of ipus ({len(places)}) must agree"
        )
    attributes = {
        "op": _reduction(op),
        "ipus": tuple(places),
        "forward_is_identity": forward_is_identity,
        "backward_is_identity": backward_is_identity,
    }
    names = [f"{t.name}_all_reduce" for t in tensors]
    return list(emit("AllReduce", tensors, names, attributes, together=False))


def _places(tensors: list[Tensor]) -> list[int]:
    try:
        return [t.ipu for t in tensors]
    except UndefinedValue as error:
        raise ValueError(
            f"Could not automatically infer the ipus: {error}. Please specify `ipus`"
        ) from None
