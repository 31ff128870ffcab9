"""The Ir: all graphs of a program."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import popdist
import popir
from popart.session_options import SessionOptions
from popart.views import IrView
from popxl.current import pop, push
from popxl.graph import Graph
from popxl.module import Module
from popxl.program import Program
from popxl.replica_grouping import ReplicaGrouping
from popxl.streams import DeviceToHostStream, HostToDeviceStream
from popxl.tensor import Tensor, TensorByRef, TensorSpec, graph_input


class Ir(Program):
    """All graphs of a program. Freed with the last of its graphs and tensors."""

    def __init__(self, replication: int | Literal["popdist"] = 1) -> None:
        self._begin(popir.Ir())
        if replication == "popdist":
            popdist.popart.configureSessionOptions(self._session_options)
        else:
            self.replication_factor = int(replication)

    def _begin(self, below: popir.Ir) -> None:
        super()._begin(below)
        if below.options is None:
            below.options = SessionOptions()

    @property
    def _pb_ir(self) -> IrView:
        return IrView(self._below)

    @staticmethod
    def _from_pb(pb: IrView) -> Any:
        return Program._of(pb._below)

    @property
    def _session_options(self) -> Any:
        return self._below.options

    @property
    def id(self) -> int:
        """Counted from 0 in the process."""
        return self._below.number

    @property
    def main_graph(self) -> Graph:
        """The graph that a run executes."""
        return Graph._of(self._below.main)

    def create_empty_graph(self, name: str | None = None) -> Graph:
        """Return a graph without inputs, outputs and operators."""
        return Graph._of(self._below.new_graph(name or "graph"))

    def create_graph(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
        """Make a graph from `fn` (or the `build` of a Module): tensors and specs become
        inputs, other arguments are passed on.
        """
        call, name = _named(fn)
        signature = inspect.signature(fn.build if isinstance(fn, Module) else fn)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(
                f"The arguments do not fit the signature of {name}{signature}: {error}"
            ) from error
        bound.apply_defaults()
        graph = self.create_empty_graph(name)
        push(graph._below)
        try:
            for parameter in signature.parameters.values():
                value = bound.arguments[parameter.name]
                bound.arguments[parameter.name] = _as_inputs(parameter, value)
            results = call(*bound.args, **bound.kwargs)
            for each in _outputs(results, name):
                graph._below.outputs.append(each._below)
        finally:
            pop()
        return graph

    @property
    def num_host_transfers(self) -> int:
        """Slices that each host array brings to one run."""
        return self._below.transfers

    @num_host_transfers.setter
    def num_host_transfers(self, value: int) -> None:
        if value < 1:
            raise ValueError(f"num_host_transfers must be 1 at least, found {value}")
        self._below.transfers = int(value)

    @property
    def replication_factor(self) -> int:
        """Replicas of all instances together."""
        if self._below.options.enableDistributedReplicatedGraphs:
            return int(self._below.options.globalReplicationFactor)
        return int(self._below.options.replicatedGraphCount)

    @replication_factor.setter
    def replication_factor(self, value: int) -> None:
        if self._below.is_prepared:
            raise RuntimeError(
                "The replication factor cannot be changed: the Ir is prepared already"
            )
        if value < 1:
            raise ValueError(f"replication must be 1 at least, found {value}")
        self._below.options.replicatedGraphCount = int(value)
        self._below.options.enableReplicatedGraphs = value > 1

    @property
    def instance_replication_factor(self) -> int:
        """Replicas of this instance."""
        return int(self._below.options.replicatedGraphCount)

    def replica_grouping(
        self, stride: int = 1, group_size: int | None = None
    ) -> ReplicaGrouping:
        """Return groups of replicas, each the first free one and those `stride` after
        it.
        """
        groups = popir.strided(self.replication_factor, stride, group_size)
        return ReplicaGrouping._make(self, groups)

    def replica_grouping_from_assignments(
        self, assignment: Sequence[int]
    ) -> ReplicaGrouping:
        """Return the groups of a list that has the group of each replica."""
        groups = popir.from_assignment(assignment, self.replication_factor)
        return ReplicaGrouping._make(self, groups)

    def get_all_h2d_streams(self) -> set[HostToDeviceStream]:
        """Return the streams that some operator loads."""
        return {
            HostToDeviceStream._of(Tensor._of(each.tensor), each)  # type: ignore[misc]
            for each in self._below.streams.values()
            if each.is_input and each.uses
        }

    def get_all_d2h_streams(self) -> set[DeviceToHostStream]:
        """Return the streams that some operator stores."""
        return {
            DeviceToHostStream._of(Tensor._of(each.tensor), each)  # type: ignore[misc]
            for each in self._below.streams.values()
            if not each.is_input and each.uses
        }

    def dot_checkpoint(self, check: str, save_dir: Any = None) -> None:
        """Write the graphs to `<check>.dot`, for graphviz, if that check is active.

        Active checks are those of the option dotChecks and of POPART_DOT_CHECKS (names
        with ':' between them, or ALL); all if neither is set.
        """
        options = self._below.options
        if not options.dotChecks and "POPART_DOT_CHECKS" not in os.environ:
            options.dotChecks = {"ALL"}
        self._write_dot(check, save_dir)

    def _write_dot(self, check: str, save_dir: Any = None) -> None:
        self._pb_ir.dotCheckpoint(self._pb_ir, check, save_dir)

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ir):
            raise TypeError(f"Value must be of type popxl.Ir. Type: {type(other)}")
        return self.id == other.id

    def __repr__(self) -> str:
        return f"Ir[id={self.id}]"


def _named(fn: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    if isinstance(fn, Module):
        name = type(fn).__qualname__
    elif callable(fn) and hasattr(fn, "__qualname__"):
        name = fn.__qualname__
    else:
        raise TypeError(
            "Callable must be a function, a method, a lambda or a popxl.Module, not "
            f"{fn!r}"
        )
    return fn, name.replace(".<locals>", "")


def _is_spec(value: object) -> bool:
    return isinstance(value, Tensor | TensorSpec)


def _as_inputs(parameter: inspect.Parameter, value: Any) -> Any:
    """Return the function's arguments: graph inputs for tensors."""
    by_ref = _by_reference(parameter)
    if _is_spec(value):
        return _input(value, parameter.name, by_ref)
    if parameter.kind is parameter.VAR_KEYWORD:
        if any(map(_is_spec, value.values())):
            if not all(map(_is_spec, value.values())):
                raise TypeError(_mixed(parameter))
            return {name: _input(each, name, by_ref) for name, each in value.items()}
        return value
    if isinstance(value, list | tuple) and any(map(_is_spec, value)):
        if not all(map(_is_spec, value)):
            raise TypeError(_mixed(parameter))
        return [
            _input(each, f"{parameter.name}_{n}", by_ref)
            for n, each in enumerate(value)
        ]
    return value


def _mixed(parameter: inspect.Parameter) -> str:
    return f"Argument {parameter.name}: tensors and other things cannot be mixed"


def _by_reference(parameter: inspect.Parameter) -> bool:
    given = parameter.annotation
    if given is TensorByRef:
        return True
    arguments = getattr(given, "__args__", ())
    return (
        getattr(given, "__origin__", None) in (list, tuple)
        and bool(arguments)
        and all(each is TensorByRef for each in arguments)
    )


def _input(like: Tensor | TensorSpec, name: str, by_ref: bool) -> Tensor:
    return graph_input(
        like.shape, like.dtype, name, by_ref, tuple(like.meta_shape or ()) or None
    )


def _outputs(results: Any, name: str) -> Iterable[Tensor]:
    if results is None:
        return ()
    if isinstance(results, Tensor):
        return (results,)
    try:
        made = list(results)
    except TypeError:
        made = [results]
    if not all(isinstance(each, Tensor) for each in made):
        raise ValueError(
            f"{name} must return None, a Tensor or an iterable of Tensors, not "
            f"{results!r}"
        )
    return made
