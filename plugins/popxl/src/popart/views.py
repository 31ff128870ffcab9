"""Views of graphs in the form of `popart`, for code that inspects a program."""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import popir
from popart.attributes import Settings
from popart.data_flow import DataFlow
from popart.enums import DataType as DataType
from popart.enums import TensorType
from popart.names import class_of, type_of
from popart.operators import OpView
from popart.session_options import SessionOptions
from popart.view import GraphId, Region, TensorInfo, View

_KINDS = {
    "constant": TensorType.Const,
    "variable": TensorType.Variable,
    "stream": TensorType.Stream,
}


class Consumers:
    """The operators that read a tensor."""

    def __init__(self, below: popir.IrTensor) -> None:
        self._below = below

    def getOps(self) -> list[OpView]:
        """Return the operators, each once."""
        return [OpView(op) for op in dict.fromkeys(self._below.readers)]

    def getTotal(self) -> int:
        """Return how often the tensor is an input."""
        return len(self._below.readers)

    def n(self, op: OpView) -> int:
        """Return how often the tensor is an input of `op`."""
        return sum(each is op._below for each in self._below.readers)

    def __len__(self) -> int:
        return len(self.getOps())


class TopoCons:
    """The order of the operators of a graph, as the program states it."""

    def __init__(self, below: popir.IrGraph) -> None:
        self._below = below

    def insert(self, before: OpView, after: OpView, tied: bool = False) -> None:
        """Make `before` run before `after`."""
        popir.run_before(before._below, after._below)

    def contains(self, before: OpView, after: OpView) -> bool:
        """Return whether the program runs `before` before `after`."""
        return before._below in after._below.after

    def getBefores(self, op: OpView) -> list[OpView]:
        """Return the operators that the program lets run before `op`."""
        return [OpView(each) for each in op._below.after]

    def getAfters(self, op: OpView) -> list[OpView]:
        """Return the operators that the program lets run after `op`."""
        below = op._below
        return [OpView(each) for each in self._below.operators if below in each.after]

    def hasConstraint(self, op: OpView) -> bool:
        """Return whether the program orders `op` at all."""
        return bool(self.getBefores(op) or self.getAfters(op))

    def remove(self, op: OpView) -> None:
        """Remove the program's ordering of `op`."""
        op._below.after = ()
        for each in self.getAfters(op):
            kept = (other for other in each._below.after if other is not op._below)
            each._below.after = tuple(kept)


class TensorView(View, shows=popir.IrTensor):
    """A tensor."""

    _below: popir.IrTensor

    @property
    def id(self) -> str:
        """Unique in its graph."""
        return self._below.id

    @property
    def info(self) -> TensorInfo:
        """Shape and type."""
        return TensorInfo(self._below.spec)

    @property
    def consumers(self) -> Consumers:
        """The operators that read it."""
        return Consumers(self._below)

    def tensorType(self) -> TensorType:
        return _KINDS.get(self._below.kind, TensorType.ActGrad)

    def str(self) -> Any:
        return self._below.id

    def isGraphInput(self) -> bool:
        return self._below in self._below.graph.inputs

    def isGraphOutput(self) -> bool:
        return self._below in self._below.graph.outputs

    def getGraphInputIndex(self) -> int:
        return self._below.graph.inputs.index(self._below)

    def getGraphOutputIndex(self) -> int:
        return self._below.graph.outputs.index(self._below)

    def _relatives(self) -> list[popir.IrTensor]:
        return popir.sharing(self._below)

    def isModified(self) -> bool:
        """Return whether an operator changes it, directly or through a view."""
        relatives = set(self._relatives())
        return any(
            op.inputs[index] in relatives
            for op in self._below.graph.operators
            for index in popir.changed_inputs(op)
        )

    def modifiedRegionsByOps(self, ops: Any, aliases: Any = None) -> list[Region]:
        """Return the part of it that `ops` (views or ids) change: all or nothing."""
        wanted = {getattr(op, "id", op) for op in ops}
        relatives = set(self._relatives())
        for op in self._below.graph.operators:
            if op.id in wanted and any(
                op.inputs[index] in relatives for index in popir.changed_inputs(op)
            ):
                return [Region.getFull(self._below.shape)]
        return []

    def hasVirtualGraphId(self) -> bool:
        """Return whether it is on a device."""
        found = popir.location_of(self._below)
        return found is not None and found.ipu is not None

    def getVirtualGraphId(self) -> int:
        """Return the device that it is on."""
        found = popir.location_of(self._below)
        if found is None or found.ipu is None:
            raise popir.IrError(f"{self._below.id!r} is on no device")
        return found.ipu

    def hasTensorData(self) -> bool:
        """Return whether the host has its values."""
        return self._below.data is not None

    def isAliased(self) -> bool:
        return any(op.record.put is not None for op in self._below.readers)

    def getGraph(self) -> GraphView:
        return GraphView(self._below.graph)

    def hasProducer(self) -> bool:
        """Return whether an operator computes it."""
        return self._below.producer is not None

    def getProducer(self) -> OpView:
        """Return the operator that computes it."""
        if self._below.producer is None:
            raise popir.IrError(f"nothing computes {self._below.id!r}")
        return OpView(self._below.producer)


class _Ids:
    """Ids of tensors, to be searched by `in`."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors

    def __contains__(self, id_: object) -> bool:
        return id_ in self._tensors


class GraphView(View, shows=popir.IrGraph):
    """A graph."""

    _below: popir.IrGraph

    @property
    def id(self) -> GraphId:
        """Unique in its Ir; empty for the main graph."""
        return GraphId(self._below.id)

    def getOps(self) -> list[OpView]:
        """Return the operators in the order of their construction."""
        return [OpView(op) for op in self._below.operators]

    def getOpIds(self) -> list[int]:
        """Return the ids of the operators in the order of their construction."""
        return [op.id for op in self._below.operators]

    def getOp(self, id_: int) -> OpView:
        for op in self._below.operators:
            if op.id == id_:
                return OpView(op)
        raise popir.IrError(f"graph {self._below.id!r} has no operator {id_}")

    def getOpSchedule(self, *_: Any) -> list[OpView]:
        """Return an order that keeps all constraints.

        If several operators could be next, those with small results come first.
        """
        return [OpView(op) for op in popir.schedule(self._below)]

    def getTensor(self, id_: str) -> TensorView:
        found = self._below.tensors.get(id_)
        if found is None:
            raise popir.IrError(f"graph {self._below.id!r} has no tensor {id_!r}")
        return TensorView(found)

    def getTensors(self) -> list[TensorView]:
        """Return all tensors."""
        return [TensorView(t) for t in self._below.tensors.values()]

    def getTensorIds(self) -> list[str]:
        return list(self._below.tensors)

    def getInputIds(self) -> list[str]:
        """Return the ids of its inputs, in order."""
        return [t.id for t in self._below.inputs]

    def getOutputIds(self) -> list[str]:
        """Return the ids of its outputs, in order."""
        return [t.id for t in self._below.outputs]

    def hasInputId(self, id_: str) -> bool:
        return id_ in self.getInputIds()

    def hasOutputId(self, id_: str) -> bool:
        return id_ in self.getOutputIds()

    def getInputId(self, index: int) -> str:
        return self._below.inputs[index].id

    def getOutputId(self, index: int) -> str:
        return self._below.outputs[index].id

    def getInputIndex(self, id_: str) -> int:
        return self._position(id_, self._below.inputs, "input")

    def getOutputIndex(self, id_: str) -> int:
        return self._position(id_, self._below.outputs, "output")

    def _position(self, id_: Any, tensors: list[popir.IrTensor], word: str) -> int:
        for index, tensor in enumerate(tensors):
            if tensor.id == id_:
                return index
        raise popir.IrError(f"graph {self._below.id!r} has no {word} {id_!r}")

    def getInputTensor(self, index: int) -> TensorView:
        return TensorView(self._below.inputs[index])

    def getOutputTensor(self, index: int) -> TensorView:
        return TensorView(self._below.outputs[index])

    def getCalledGraphs(self) -> list[GraphView]:
        """Return the graphs that its operators run, each once."""
        called = (g for op in self._below.operators for g in op.called_graphs)
        return [GraphView(g) for g in dict.fromkeys(called)]

    def topoCons(self) -> TopoCons:
        """Return the order that the program gives its operators."""
        return TopoCons(self._below)

    def markAsOutput(self, id_: str) -> None:
        """Make a tensor the last output."""
        self._below.outputs.append(self.getTensor(id_)._below)

    def removeOutput(self, output: Any) -> None:
        """Remove an output, by index or id; the tensor stays."""
        index = output if isinstance(output, int) else self.getOutputIndex(output)
        del self._below.outputs[index]

    def removeInput(self, given: Any) -> None:
        """Remove an input, by index or id."""
        index = given if isinstance(given, int) else self.getInputIndex(given)
        tensor = self._below.inputs.pop(index)
        self._below.tensors.pop(tensor.id, None)

    def eraseOp(self, id_: int) -> None:
        """Remove an operator; its results stay, without a producer."""
        popir.erase(self.getOp(id_)._below)

    def replaceTensor(self, old: str, new: str) -> None:
        """Replace one tensor by another for all readers."""
        popir.replace(self.getTensor(old)._below, self.getTensor(new)._below)

    def removeIsolatedTensors(self, retain_used_io: bool = False) -> None:
        """Remove tensors that no operator computes or reads."""
        popir.remove_isolated(self._below)

    def getIr(self) -> IrView:
        return IrView(self._below.ir)

    def getGraphString(self) -> str:
        """Return the graph as a readable string."""
        return f"subgraph '{self._below.id}'" if self._below.id else "the main graph"

    def setCanBeRecursivelyAutodiffed(self, can: bool) -> None:
        """Set whether autodiff of a caller may differentiate it too."""
        self._below.can_be_differentiated = can

    def __getattr__(self, name: str) -> Callable[..., OpView]:
        """Return a function that makes an operator of a class without attributes."""
        start, _, wanted = name.partition("_")
        if start == "createConnectedOp":
            for ours in popir.operator_types():
                if class_of(ours) == wanted:
                    return lambda ins, outs, opid=None, settings=None: self._create(
                        ours, ins, outs, settings
                    )
        raise AttributeError(f"a graph has no {name!r}")

    def _create(self, ours: str, ins: Any, outs: Any, settings: Any) -> OpView:
        given = ins if isinstance(ins, dict) else dict(enumerate(ins))
        named = outs if isinstance(outs, dict) else dict(enumerate(outs))
        inputs = [self.getTensor(given[n])._below for n in sorted(given)]
        prefix = f"{self._below.id}/" if self._below.id else ""
        names = [str(named[n]).removeprefix(prefix) for n in sorted(named)]
        where = (
            settings._below
            if isinstance(settings, Settings)
            else popir.OperatorSettings()
        )
        # Names come with their scopes here.
        where = replace(where, scopes=())
        try:
            return OpView(self._below.add(ours, inputs, names, {}, where))
        except KeyError as error:
            raise popir.IrError(
                f"an operator {type_of(ours)} is made by popxl: it needs {error}"
            ) from None

    def __contains__(self, id_: object) -> bool:
        return id_ in self._below.tensors

    def __iter__(self) -> Iterator[OpView]:
        return iter(self.getOps())


class IrView(View, shows=popir.Ir):
    """All graphs of a program."""

    _below: popir.Ir

    def __init__(self, below: popir.Ir | None = None) -> None:
        if below is None:
            below = popir.Ir()
            below.options = SessionOptions()
        super().__init__(below)

    def getSessionOptions(self) -> Any:
        """Return the options, which may be set."""
        return self._below.options

    def getAllGraphs(self) -> list[GraphView]:
        """Return the main graph and all others."""
        return [GraphView(g) for g in self._below.graphs.values()]

    def getMainGraph(self) -> GraphView:
        """Return the graph that a run executes."""
        return GraphView(self._below.main)

    def getGraph(self, id_: Any) -> GraphView:
        found = self._below.graphs.get(str(id_))
        if found is None:
            raise popir.IrError(f"there is no graph {id_!r}")
        return GraphView(found)

    def hasGraph(self, id_: Any) -> bool:
        return str(id_) in self._below.graphs

    def getTensor(self, id_: str) -> TensorView:
        """Return the tensor of that id, of any graph."""
        for graph in self._below.graphs.values():
            if id_ in graph.tensors:
                return TensorView(graph.tensors[id_])
        raise popir.IrError(f"there is no tensor {id_!r}")

    def getMainGraphTensors(self) -> _Ids:
        """Return the ids of the main graph."""
        return _Ids(self._below.main.tensors)

    def getDataFlow(self) -> DataFlow:
        """Return the anchors of `setDataFlow`, and the slices that a run takes."""
        flow: DataFlow | None = self._below.data_flow
        anchors = flow.anchor_types if flow is not None else {}
        return DataFlow(self._below.transfers, anchors)

    def setDataFlow(self, flow: DataFlow) -> None:
        """Set the number of slices that a run takes.

        Streams decide which tensors are anchored.
        """
        self._below.data_flow = flow
        self._below.transfers = flow.batchesPerStep()

    def getId(self) -> int:
        """Return the number of the Ir, counted in the process."""
        return self._below.number

    def setIsPrepared(self) -> None:
        """Forbid further changes."""
        self._below.is_prepared = True

    def isPrepared(self) -> bool:
        """Return whether a session was made of it."""
        return self._below.is_prepared

    def updateVertices(self) -> None:
        """Do nothing: this back end has no vertices."""

    def setPatterns(self, patterns: Any) -> None:
        """Do nothing: graphs are run as they are."""

    def applyPreAliasPatterns(self, graph: Any = None) -> None:
        """Do nothing: graphs are run as they are."""

    def applyInplacePattern(self, graph: Any = None) -> None:
        """Do nothing: only operators declared in place work in place."""

    def removeIsolatedGraphs(self) -> None:
        """Do nothing: graphs that nothing calls do not run."""

    def removeIsolatedTensors(self, retain_used_io: bool = False) -> None:
        """Remove tensors of all graphs that no operator computes or reads."""
        for graph in self._below.graphs.values():
            popir.remove_isolated(graph)

    def createGraph(self, id_: Any) -> GraphView:
        return GraphView(self._below.new_named_graph(str(id_)))

    def dotCheckpoint(self, ir: Any, check: str, save_dir: Any = None) -> None:
        """Write all graphs to `<check>.dot`, for graphviz, if that check is active.

        The option dotChecks and POPART_DOT_CHECKS name the active checks, separated by
        ':', or ALL.
        """
        options = self._below.options
        given = os.environ.get("POPART_DOT_CHECKS", "").split(":")
        active = {str(name).upper() for name in (*options.dotChecks, *given)} - {""}
        if not active & {"ALL", check.upper()}:
            return
        folder = Path(options.logDir if save_dir is None else save_dir)
        (folder / f"{check}.dot").write_text(popir.dot_of(self._below))

    def logIr(self) -> None:
        """Write all operators to stderr."""
        for graph in self._below.graphs.values():
            sys.stderr.write(f"{GraphView(graph).getGraphString()}\n")
            for op in graph.operators:
                ins, outs = ([t.id for t in ts] for ts in (op.inputs, op.outputs))
                sys.stderr.write(f"  {type_of(op.type)} {ins} -> {outs}\n")
