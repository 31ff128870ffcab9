"""Tensors: handles of the values of graphs, and functions that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NewType

import numpy as np

import popir
from popart.enums import TileSet
from popart.logs import log
from popart.views import TensorView
from popxl import current
from popxl.dtypes import dtype
from popxl.errors import UndefinedValue
from popxl.program import Program
from popxl.remote_buffer import RemoteBuffer, _sharding, replica_sharded_buffer
from popxl.replica_grouping import ReplicaGrouping
from popxl.tensor_spec import TensorSpec as TensorSpec
from popxl.utils import downcast_np_dtypes, to_numpy

ScalarType = int | float | bool
HostTensor = Any
HostScalarTensor = Any
#: A tensor, or a value that can become a constant.
TensorLike = Any


#: The value of `Tensor.tile_set` for each tile set.
TILE_SET_MAP = {TileSet.Compute: "compute", TileSet.IO: "io"}


def __getattr__(name: str) -> Any:
    # Importing torch takes a second, so do it only when its tensors are needed.
    if name != "host_tensor_types":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kinds: tuple[type, ...] = (np.ndarray, np.generic, int, float, bool, list, tuple)
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        return kinds
    return (*kinds, torch.Tensor)


class _Location:
    """Place of a tensor."""

    def __init__(self, placement: popir.Placement) -> None:
        self._placement = placement

    def isRemote(self) -> bool:  # noqa: N802
        """Return whether it is in remote memory."""
        return self._placement.buffer is not None

    def isSharded(self) -> bool:  # noqa: N802
        """Return whether each replica holds a share."""
        return self._placement.shards > 1

    def getRemoteBufferInfo(self) -> tuple[int, int]:  # noqa: N802
        """Return the number of the buffer and the offset in it. Only remote tensors
        have them.
        """
        buffer = self._placement.buffer
        if buffer is None:
            raise popir.IrError("the tensor is not in remote memory")
        return buffer.number, self._placement.offset


class Tensor:
    """A value of a graph; one handle each."""

    _below: popir.IrTensor
    _ir: Program

    __iter__ = None
    __contains__ = None
    __array_ufunc__ = None

    def __init__(self) -> None:
        raise RuntimeError(
            "Cannot construct a popxl.Tensor directly; use an operator, or "
            "popxl.variable and its like"
        )

    @classmethod
    def _of(cls, below: popir.IrTensor) -> Tensor:
        ir = Program._of(below.graph.ir)
        found: Tensor | None = ir._tensors.get(below)
        if found is None:
            kind = {"variable": Variable, "constant": Constant}.get(below.kind, Tensor)
            found = kind.__new__(kind)
            found._below = below
            found._ir = ir
            ir._tensors[below] = found
        return found

    @classmethod
    def _from_pb_tensor(cls, pb: TensorView) -> Tensor:
        return cls._of(pb._below)

    @property
    def _pb_tensor(self) -> TensorView:
        return TensorView(self._below)

    @property
    def id(self) -> str:
        """Unique in its graph."""
        return self._below.id

    @property
    def name(self) -> str:
        """The id without the graph's."""
        return self._below.name

    @property
    def scope(self) -> str:
        """The id of its graph."""
        return self._below.graph.id

    @property
    def ir(self) -> Any:
        """The Ir it is part of."""
        return self._ir

    @property
    def dtype(self) -> dtype:
        """Type of elements."""
        return dtype.as_dtype(self._below.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape on a replica."""
        return self._below.shape

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """Return the shape of the whole if it is a shard; empty otherwise."""
        return self._below.spec.meta_shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nelms(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def spec(self) -> TensorSpec:
        """Shape, type and meta shape."""
        return TensorSpec(self.shape, self.dtype, self.meta_shape)

    @property
    def location_info(self) -> Any:
        """Return its place."""
        return _Location(self._below.placement)

    @property
    def in_sync_with_ipu(self) -> bool:
        """Return whether the host's copy is current."""
        return self._below.is_current

    def strides(self, shape: Iterable[int] | None = None) -> tuple[int, ...]:
        """Return the bytes from element to element along each axis, row by row."""
        dims = list(self.shape if shape is None else shape)
        step, result = self.dtype.as_numpy().itemsize, []
        for size in reversed(dims):
            result.append(step)
            step *= size
        return tuple(result[::-1])

    def _placed(self) -> popir.OperatorSettings:
        found = popir.location_of(self._below)
        if found is None:
            raise UndefinedValue(f"Nothing uses {self.id!r}: it is on no device yet")
        return found

    @property
    def ipu(self) -> int:
        """Return its device; UndefinedValue if that is unknown."""
        found = self._placed().ipu
        if found is None:
            raise UndefinedValue(f"{self.id!r} is on no device")
        return found

    @property
    def tile_set(self) -> Literal["compute", "io"]:
        """Return its tiles."""
        return "io" if self._placed().tile_set == "io" else "compute"

    @property
    def T(self) -> Tensor:  # noqa: N802
        """Return the tensor with its axes reversed."""
        return self.transpose()

    @property
    def T_(self) -> Tensor:  # noqa: N802
        """Return a view with the axes reversed."""
        return self.transpose_()

    def transpose(self, permutation: Sequence[int] | None = None) -> Tensor:
        """Return the tensor with its axes in another order."""
        return _op("transpose", self, permutation)

    def transpose_(self, permutation: Sequence[int] | None = None) -> Tensor:
        """Return a view with the axes in another order."""
        return _op("transpose_", self, permutation)

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """Return the elements in another shape."""
        return _op("reshape", self, shape)

    def reshape_(self, shape: Sequence[int]) -> Tensor:
        """Return a view of the elements in another shape."""
        return _op("reshape_", self, shape)

    def flatten(self) -> Tensor:
        """Return the elements along one axis."""
        return _op("flatten", self)

    def flatten_(self) -> Tensor:
        """Return a view of the elements along one axis."""
        return _op("flatten_", self)

    def detach(self) -> Tensor:
        """Return the values without gradients."""
        return _op("detach", self)

    def detach_(self) -> Tensor:
        """Return a view of the values without gradients."""
        return _op("detach_", self)

    def copy_to_ipu(self, destination: int, source: int | None = None) -> Tensor:
        """Copy the tensor to another device."""
        return _op("ipu_copy", self, destination, source)

    def diag(self) -> Tensor:
        """Return the diagonal of a matrix."""
        if self.rank != 2:
            raise ValueError(f"diag needs a tensor of rank 2, found {self.rank}")
        return self.flatten()[:: self.shape[1] + 1]

    def __len__(self) -> int:
        if not self.shape:
            raise ValueError("A scalar has no length")
        return self.shape[0]

    def __hash__(self) -> int:
        return hash((self.id, self._ir))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and other._below is self._below

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{self.id} {self.dtype} {self.shape}]"

    def _ensure_tensor(
        self, other: Any, dtype: Any = None, raise_on_empty: bool = True
    ) -> Tensor:
        """Return the other operand as a tensor of this one's type."""
        if isinstance(other, Tensor):
            return other
        if raise_on_empty and np.size(other) == 0:
            raise ValueError("Data with 0 elements cannot become a tensor")
        return constant(other, dtype or self.dtype)

    def __add__(self, other: Any) -> Tensor:
        return _op("add", self, self._ensure_tensor(other))

    def __radd__(self, other: Any) -> Tensor:
        return _op("add", self._ensure_tensor(other), self)

    def __iadd__(self, other: Any) -> Tensor:
        _op("add_", self, self._ensure_tensor(other))
        return self

    def __sub__(self, other: Any) -> Tensor:
        return _op("sub", self, self._ensure_tensor(other))

    def __rsub__(self, other: Any) -> Tensor:
        return _op("sub", self._ensure_tensor(other), self)

    def __mul__(self, other: Any) -> Tensor:
        return _op("mul", self, self._ensure_tensor(other))

    def __rmul__(self, other: Any) -> Tensor:
        return _op("mul", self._ensure_tensor(other), self)

    def __truediv__(self, other: Any) -> Tensor:
        return _op("div", self, self._ensure_tensor(other))

    def __rtruediv__(self, other: Any) -> Tensor:
        return _op("div", self._ensure_tensor(other), self)

    def __mod__(self, other: Any) -> Tensor:
        return _op("fmod", self, self._ensure_tensor(other))

    def __rmod__(self, other: Any) -> Tensor:
        return _op("fmod", self._ensure_tensor(other), self)

    def __matmul__(self, other: Any) -> Tensor:
        return _op("matmul", self, self._ensure_tensor(other))

    def __rmatmul__(self, other: Any) -> Tensor:
        return _op("matmul", self._ensure_tensor(other), self)

    def __pow__(self, other: Any) -> Tensor:
        return _op("pow", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _op("pow", self._ensure_tensor(other), self)

    def __and__(self, other: Any) -> Tensor:
        return _op("logical_and", self, self._ensure_tensor(other))

    def __rand__(self, other: Any) -> Tensor:
        return _op("logical_and", self._ensure_tensor(other), self)

    def __or__(self, other: Any) -> Tensor:
        return _op("logical_or", self, self._ensure_tensor(other))

    def __ror__(self, other: Any) -> Tensor:
        return _op("logical_or", self._ensure_tensor(other), self)

    def __neg__(self) -> Tensor:
        return _op("negate", self)

    def __invert__(self) -> Tensor:
        return _op("logical_not", self)

    def __getitem__(self, key: Any) -> Tensor:
        return _op("getitem", self, key)


#: Alias, because functions below have a parameter named `dtype`.
as_dtype = dtype.as_dtype
#: The operators. `popxl.ops` enters them, because it imports this module.
_operators: dict[str, Callable[..., Any]] = {}


def enter_operators(operators: Mapping[str, Callable[..., Any]]) -> None:
    """Make `operators` the methods of tensors."""
    _operators.update(operators)


def _op(name: str, *given: Any) -> Tensor:
    result: Tensor = _operators[name](*given)
    return result


#: An input that the called graph may change.
TensorByRef = NewType("TensorByRef", Tensor)


class Constant(Tensor):
    """A tensor whose value never changes."""

    def copy_to_ipu(self, dst: int, src: int) -> Tensor:  # type: ignore[override]
        """Copy the tensor to another device."""
        return _op("ipu_copy", self, dst, src)


class Variable(Tensor):
    """A tensor that keeps its value from run to run."""

    def copy_to_ipu(self, dst: int, src: int) -> Tensor:  # type: ignore[override]
        """Copy the tensor to another device."""
        return _op("ipu_copy", self, dst, src)

    @property
    def replica_grouping(self) -> ReplicaGrouping:
        """Return the groups of replicas with the same values: all replicas
        by default.
        """
        groups = self._below.placement.groups
        if groups is not None:
            return ReplicaGrouping._make(self.ir, groups)
        alike: ReplicaGrouping = self.ir.replica_grouping()
        return alike

    @property
    def _memmap_arr(self) -> np.memmap[Any, Any] | None:
        """Return the file that the variable owns, if it owns one."""
        data = self._below.data
        return data if isinstance(data, np.memmap) else None

    @property
    def retrieval_mode(self) -> Literal["one_per_group", "all_replicas"]:
        """Return the choice of the replicas whose values the host retrieves."""
        whole = self._below.placement.retrieved
        return "one_per_group" if whole is None else "all_replicas"

    @property
    def shape_on_host(self) -> tuple[int, ...]:
        """Shape of the host's copy: several groups lead it."""
        data = self._below.data
        assert data is not None
        return data.shape

    @property
    def shape_on_replica(self) -> tuple[int, ...]:
        """Return its shape on a replica; for a variable in shards the shape of the
        whole.
        """
        return self.shape


def _host_data(
    data: Any,
    type_: dtype | None,
    downcast: bool,
    log2_scale: int | None,
    nan_on_overflow: bool | None,
) -> np.ndarray[Any, Any]:
    if isinstance(data, Tensor):
        raise TypeError(f"{data} is already a tensor; expected data")
    array = to_numpy(data, type_, downcast, True, log2_scale, nan_on_overflow)
    if array.dtype.kind == "V" and not array.dtype.names:
        raise TypeError(f"{data!r} cannot become a tensor")
    return array


def _is_float8(data: Any) -> bool:
    return bool(getattr(getattr(data, "dtype", None), "names", None))


def variable(
    data: HostTensor,
    dtype: dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    retrieval_mode: Literal["one_per_group", "all_replicas"] | None = None,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Variable:
    """Return a variable of the main graph with `data`, which are copied."""
    placement = _placement(replica_grouping, retrieval_mode)
    array = _variable_data(
        data, dtype, downcast, log2_scale, nan_on_overflow, replica_grouping
    )
    return _new_variable(array, name, placement)


def _placement(
    replica_grouping: ReplicaGrouping | None, retrieval_mode: str | None
) -> popir.Placement:
    graph = current.graph()
    if graph is not graph.ir.main:
        raise ValueError("Variables can only be made in the main graph")
    if retrieval_mode not in (None, "one_per_group", "all_replicas"):
        raise ValueError(f"Invalid retrieval_mode: {retrieval_mode}")
    groups = None if replica_grouping is None else replica_grouping._groups
    made = popir.Placement(groups)
    if retrieval_mode == "all_replicas":
        made.retrieved = np.empty(0)  # replaced when its shape is known
    return made


def _variable_data(
    data: Any,
    type_: dtype | None,
    downcast: bool,
    log2_scale: int | None,
    nan_on_overflow: bool | None,
    replica_grouping: ReplicaGrouping | None,
) -> np.ndarray[Any, Any]:
    if isinstance(data, np.memmap):
        mapped: np.ndarray[Any, Any] = _mapped(data, type_, downcast)
        if replica_grouping is None or replica_grouping.is_const:
            return mapped
        log(
            "popxl",
            "WARN",
            "you have passed np.memmap data and a non-const replica grouping: the "
            "data are copied",
        )
        return np.array(mapped)
    given = as_dtype(data.dtype) if type_ is None and _is_float8(data) else type_
    return _host_data(data, given, downcast, log2_scale, nan_on_overflow)


def _new_variable(
    array: np.ndarray[Any, Any], name: str | None, placement: popir.Placement
) -> Variable:
    groups, shape = placement.groups, array.shape
    if groups is not None and groups.num_groups > 1:
        if not shape or shape[0] != groups.num_groups:
            raise ValueError(
                f"The first axis of the data, of shape {list(shape)}, must have the "
                f"length of the number of groups ({groups.num_groups})"
            )
        shape = shape[1:]
    made = _made("variable", array, name, shape)
    assert isinstance(made, Variable)
    if placement.retrieved is not None:
        placement.retrieved = _all_replicas(array, made, placement)
    made._below.placement = placement
    return made


def _all_replicas(
    array: np.ndarray[Any, Any], made: Variable, placement: popir.Placement
) -> np.ndarray[Any, Any] | None:
    """Return the values of all replicas; None if the host has them."""
    groups = placement.groups
    count = made.ir.replication_factor if groups is None else groups.num_replicas
    each = [0] * count if groups is None else groups.assignment
    if count == 1 or (groups is not None and groups.num_groups == count):
        return None
    several = groups is not None and groups.num_groups > 1
    return np.stack([array[g] if several else array for g in each])


def _mapped(data: np.memmap[Any, Any], type_: dtype | None, downcast: bool) -> Any:
    """Return the file itself, which the variable owns from now on."""
    start = "When passing a memory-mapped NumPy array"
    if not data.flags.c_contiguous or not data.flags.aligned:
        raise ValueError(f"{start}, it must already be in C-ordered, aligned memory")
    if type_ is not None and type_.as_numpy() != data.dtype:
        raise ValueError(f"{start}, the `dtype` parameter must be None or its own type")
    if downcast and data.dtype in downcast_np_dtypes:
        raise ValueError(
            f"{start}, the dtype {type_} is not supported, as it requires downcasting"
        )
    return data


def constant(
    data: HostTensor,
    dtype: dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Constant:
    """Return a constant of the current graph."""
    if dtype is None and _is_float8(data):
        raise TypeError("float8 data need a `dtype` beside them")
    array = _host_data(data, dtype, downcast, log2_scale, nan_on_overflow)
    made = _made("constant", array, name)
    assert isinstance(made, Constant)
    return made


def _made(
    kind: Literal["variable", "constant"],
    data: np.ndarray[Any, Any],
    name: str | None,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    graph = current.graph()
    graph.ir.check_open()
    of = data.shape if shape is None else shape
    spec = popir.Spec(popir.dtype_of(data.dtype), of)
    scopes = current.settings().scopes
    return Tensor._of(graph.new_tensor(spec, kind, name, scopes, data))


def graph_input(
    shape: Iterable[int],
    dtype: dtype,
    name: str | None = None,
    by_ref: bool = False,
    meta_shape: Iterable[int] | None = None,
) -> Tensor:
    """Return a further input of the current graph."""
    graph = current.graph()
    spec = popir.Spec(
        dtype.as_dtype(dtype)._below, tuple(shape), tuple(meta_shape or ())
    )
    scopes = current.settings().scopes
    return Tensor._of(graph.add_input(spec, name, scopes, by_ref))


def graph_output(t: Tensor) -> None:
    """Make `t` another output of the current graph; ValueError for a tensor of another
    graph.
    """
    graph = current.graph()
    if t._below.graph is not graph:
        raise ValueError(f"Tensor {t.id!r} is not in the current graph {graph.id!r}")
    graph.outputs.append(t._below)


def remote_variable(
    data: HostTensor,
    remote_buffer: RemoteBuffer,
    offset: int = 0,
    dtype: dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    retrieval_mode: Literal["one_per_group", "all_replicas"] | None = "one_per_group",
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Variable:
    """Return a variable that is a row of a remote buffer, at `offset`."""
    placement = _placement(replica_grouping, retrieval_mode)
    array = _variable_data(
        data, dtype, downcast, log2_scale, nan_on_overflow, replica_grouping
    )
    made = _new_variable(array, name, placement)
    remote_buffer.validate_tensor_matches_buffer(made)
    _put_in_row(placement, remote_buffer, offset)
    return made


def _put_in_row(
    placement: popir.Placement, remote_buffer: RemoteBuffer, offset: int
) -> None:
    remote_buffer._buffer.check(int(offset))
    placement.buffer, placement.offset = remote_buffer._buffer, int(offset)


def remote_replica_sharded_variable(
    data: HostTensor,
    remote_buffer: RemoteBuffer,
    offset: int = 0,
    dtype: dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    retrieval_mode: Literal["one_per_group", "all_replicas"] | None = "one_per_group",
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Variable:
    """Return a variable of which each member of a group has a shard, a row of a remote
    buffer, at `offset`.
    """
    count = Program._of(current.graph().ir).replication_factor  # type: ignore[attr-defined]
    if count <= 1:
        raise ValueError(
            "The Ir's replication_factor must be above 1 for a variable in shards"
        )
    placement = _placement(replica_grouping, retrieval_mode)
    array = _variable_data(
        data, dtype, downcast, log2_scale, nan_on_overflow, replica_grouping
    )
    made = _new_variable(array, name, placement)
    if not remote_buffer.meta_shape:
        remote_buffer.meta_shape = made.shape
    if remote_buffer.meta_shape != made.shape or remote_buffer.tensor_dtype is not (
        made.dtype
    ):
        raise ValueError(
            f"Tensor {made.id} does not match buffer. It is {made.dtype}"
            f"{list(made.shape)}, a row is a shard of {remote_buffer.tensor_dtype}"
            f"{list(remote_buffer.meta_shape)}"
        )
    size = placement.groups.size if placement.groups is not None else count
    placement.shards = _shard_count(made, remote_buffer, size)
    _put_in_row(placement, remote_buffer, offset)
    return made


def _shard_count(made: Variable, remote_buffer: RemoteBuffer, size: int) -> int:
    """Return the number of parts into which a row of the buffer cuts the variable."""
    row, given = remote_buffer.tensor_shape, remote_buffer._shard_over
    # Several counts give a row of one size if the tensor is small.
    counts = range(size, 0, -1) if given is None else (given,)
    for count in counts:
        if size % count == 0 and row == (popir.shard_size(made.nelms, count),):
            return count
    raise ValueError(
        f"Tensor {made.id} does not match buffer: a row of shape {list(row)} is no "
        f"shard of {list(made.shape)} over {size} replicas"
    )


def replica_sharded_variable(
    data: HostTensor,
    dtype: dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    shard_over: int | None = None,
    retrieval_mode: Literal["one_per_group", "all_replicas"] | None = "one_per_group",
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> tuple[Variable, Tensor]:
    """Return a variable of which each member of a group has a shard on the device: the
    handle that the host reads and writes, and the shard.
    """
    _placement(replica_grouping, retrieval_mode)
    array = _variable_data(
        data, dtype, downcast, log2_scale, nan_on_overflow, replica_grouping
    )
    _sharding(replica_grouping, shard_over)
    type_ = as_dtype(array.dtype)
    buffer = replica_sharded_buffer(array.shape, type_, replica_grouping, shard_over)
    handle = remote_replica_sharded_variable(
        array, buffer, 0, type_, name, False, replica_grouping, retrieval_mode
    )
    shard = _op("load_shard", buffer, f"{handle.name}_rts")
    return handle, shard
