"""Views of graphs as `popart` shows them: what looks inside a program sees ours."""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

import popir
from popart.names import class_of, type_of

#: Types that are called otherwise here.
_NAMES = {"FLOAT32": "FLOAT", "FLOAT64": "DOUBLE"}


class _View:
    """Compared by what is below."""

    _below: Any

    def __init__(self, below: Any) -> None:
        self._below = below

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _View) and self._below is other._below

    def __hash__(self) -> int:
        return hash(id(self._below))


class DataType(Enum):
    """Types of elements."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    UINT32 = 6
    UINT64 = 7
    BOOL = 8
    FLOAT = 9
    FLOAT16 = 10
    BFLOAT16 = 11
    DOUBLE = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    STRING = 15
    FLOAT8_143 = 16
    FLOAT8_152 = 17
    UNDEFINED = 18


class TensorInfo:
    """Shape and type."""

    def __init__(self, spec: popir.Spec) -> None:
        self._spec = spec

    def shape(self) -> list[int]:
        """Dimensions."""
        return list(self._spec.shape)

    def metaShape(self) -> list[int]:
        """Of what it is a shard of."""
        return list(self._spec.meta_shape)

    def rank(self) -> int:
        """Number of dimensions."""
        return len(self._spec.shape)

    def nelms(self) -> int:
        """Number of elements."""
        count = 1
        for size in self._spec.shape:
            count *= size
        return count

    def dataType(self) -> DataType:
        """Type of elements."""
        name = self._spec.dtype.name.upper()
        return DataType[_NAMES.get(name, name)]

    def data_type_lcase(self) -> str:
        """Such as `float32`."""
        return self._spec.dtype.name


class TensorView(_View):
    """A tensor."""

    _below: popir.Tensor

    @property
    def id(self) -> str:
        """Unique in its graph."""
        return self._below.id

    @property
    def info(self) -> TensorInfo:
        """Shape and type."""
        return TensorInfo(self._below.spec)

    def tensorType(self) -> str:
        """Const, Variable, Stream or ActGrad."""
        kinds = {"constant": "Const", "variable": "Variable", "stream": "Stream"}
        return kinds.get(self._below.kind, "ActGrad")

    def hasTensorData(self) -> bool:
        """Whether the host has its values."""
        return self._below.data is not None

    def isAliased(self) -> bool:
        """Whether an alias of it was made."""
        return any(op.record.put is not None for op in self._below.readers)

    def getGraph(self) -> GraphView:
        """The graph that it is in."""
        return GraphView(self._below.graph)

    def hasProducer(self) -> bool:
        """Whether an operator computes it."""
        return self._below.producer is not None

    def getProducer(self) -> OpView:
        """The operator that computes it."""
        if self._below.producer is None:
            raise popir.IrError(f"nothing computes {self._below.id!r}")
        return OpView(self._below.producer)


class _Value:
    def __init__(self, value: float) -> None:
        self._value = value

    def val(self) -> float:
        """The number; 0.0 where a tensor has it."""
        return self._value


class OpSettings:
    """Where an operator stands."""

    def __init__(self, below: popir.Settings) -> None:
        self.tileSet = below.tile_set
        self.executionContext = below.fragment
        self.vgraphId = below.ipu
        self.scope = "/".join(below.scopes)


class ConvOptions:
    """Hints of a convolution, kept and without effect."""

    def __init__(self, attributes: Any) -> None:
        hints = attributes.get("hints", {})
        self.availableMemoryProportions = list(hints.get("proportions") or [])
        self.partialsTypes = list(hints.get("partials") or [])
        self.enableConvDithering = list(hints.get("dithering") or [])


class OpView(_View):
    """An operator."""

    _below: popir.Operator

    @property
    def id(self) -> int:
        """Unique in its Ir."""
        return self._below.id

    @property
    def name(self) -> str:
        """What it is called."""
        return self._below.name

    def opType(self) -> str:
        """Its type, as the original calls it."""
        return type_of(self._below.type)

    def className(self) -> str:
        """Its class, as the original calls it."""
        return class_of(self._below.type)

    def debugName(self) -> str:
        """Scopes and type."""
        return "/".join((*self._below.settings.scopes, self.opType()))

    def inTensor(self, index: int) -> TensorView:
        """The input of that index."""
        return TensorView(self._below.inputs[index])

    def outTensor(self, index: int) -> TensorView:
        """The output of that index."""
        return TensorView(self._below.outputs[index])

    def getInputTensors(self) -> list[TensorView]:
        """In order."""
        return [TensorView(t) for t in self._below.connected]

    def connectInTensor(self, index: int, id_: str) -> None:
        """Connect an input to the tensor of that id."""
        graph = self._below.graph
        # A loop's counter and condition are the wrapper's, not inputs of ours.
        at = int(index) - (2 if self._below.type == "Loop" else 0)
        graph.connect(self._below, at, GraphView(graph).getTensor(id_)._below)

    def getOutputTensors(self) -> list[TensorView]:
        """In order."""
        return [TensorView(t) for t in self._below.outputs]

    def inId(self, index: int) -> str:
        """The id of an input."""
        return self._below.inputs[index].id

    def outId(self, index: int) -> str:
        """The id of an output."""
        return self._below.outputs[index].id

    def hasInput(self, index: int) -> bool:
        """Whether there is such an input."""
        return 0 <= index < len(self._below.inputs)

    def hasOutput(self, index: int) -> bool:
        """Whether there is such an output."""
        return 0 <= index < len(self._below.outputs)

    def getSettings(self) -> OpSettings:
        """Where it stands."""
        return OpSettings(self._below.settings)

    def getGraph(self) -> GraphView:
        """The graph that it is in."""
        return GraphView(self._below.graph)

    def getCalledGraphs(self) -> list[GraphView]:
        """The graphs that it runs."""
        return [GraphView(g) for g in self._below.called_graphs]

    def getCalledGraph(self) -> GraphView:
        """The graph that it runs."""
        return GraphView(self._below.called_graphs[0])

    def hasVirtualGraphId(self) -> bool:
        """Whether it is on a device."""
        return self._below.settings.ipu is not None

    def getVirtualGraphId(self) -> int:
        """The device that it is on."""
        if self._below.settings.ipu is None:
            raise popir.IrError(f"{self._below} is on no device")
        return self._below.settings.ipu

    def modifiesIndex(self, index: int) -> bool:
        """Whether it changes that input."""
        return index in popir.changed_inputs(self._below)

    def modifies(self) -> bool:
        """Whether it changes any input."""
        return bool(popir.changed_inputs(self._below))

    def getFactor(self) -> _Value:
        """Of AccumulatorScale and SparseAccumulate."""
        given = self._below.attributes["factor"]
        return _Value(0.0 if given is None or isinstance(given, str) else float(given))

    def getAxis(self) -> int:
        """The axis it works along."""
        return int(self._below.attributes["axis"])

    def getPartialsType(self) -> str:
        """Of a MatMul: kept, without effect."""
        return str(self._below.attributes.get("partials_type") or "FLOAT")

    def getConvOptions(self) -> ConvOptions:
        """Of a Conv: a copy of its hints."""
        return ConvOptions(self._below.attributes)

    def setConvOptions(self, options: ConvOptions) -> None:
        """Other hints."""
        self._below.attributes["hints"] = {
            "proportions": list(options.availableMemoryProportions),
            "partials": list(options.partialsTypes),
            "dithering": list(options.enableConvDithering),
        }

    def isOptimizerOp(self) -> bool:
        """Whether it updates an accumulator or a weight."""
        return self._below.type in (
            *("Accumulate", "AccumulatorScale", "SparseAccumulate", "CopyVarUpdate"),
            *("AdamUpdater", "AdamVarUpdate", "ScaledAddLhsInplace"),
        )

    def __repr__(self) -> str:
        return f"{self._below.id} ({self.opType()})"


class _Ids:
    """Ids, which `in` looks for."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors

    def __contains__(self, id_: object) -> bool:
        return id_ in self._tensors


class GraphView(_View):
    """A graph."""

    _below: popir.Graph

    @property
    def id(self) -> str:
        """Unique in its Ir; empty for the main graph."""
        return self._below.id

    def getOps(self) -> list[OpView]:
        """In the order in which they were made."""
        return [OpView(op) for op in self._below.operators]

    def getOpIds(self) -> list[int]:
        """In the order in which they were made."""
        return [op.id for op in self._below.operators]

    def getOp(self, id_: int) -> OpView:
        """The operator of that id."""
        for op in self._below.operators:
            if op.id == id_:
                return OpView(op)
        raise popir.IrError(f"graph {self._below.id!r} has no operator {id_}")

    def getOpSchedule(self, *_: Any) -> list[OpView]:
        """An order that keeps all constraints; where it is free, operators with small
        results come first."""
        return [OpView(op) for op in popir.schedule(self._below)]

    def getTensor(self, id_: str) -> TensorView:
        """The tensor of that id."""
        found = self._below.tensors.get(id_)
        if found is None:
            raise popir.IrError(f"graph {self._below.id!r} has no tensor {id_!r}")
        return TensorView(found)

    def getTensors(self) -> list[TensorView]:
        """All."""
        return [TensorView(t) for t in self._below.tensors.values()]

    def getTensorIds(self) -> list[str]:
        """All ids."""
        return list(self._below.tensors)

    def getInputIds(self) -> list[str]:
        """In order."""
        return [t.id for t in self._below.inputs]

    def getOutputIds(self) -> list[str]:
        """In order."""
        return [t.id for t in self._below.outputs]

    def hasInputId(self, id_: str) -> bool:
        """Whether an input has that id."""
        return id_ in self.getInputIds()

    def hasOutputId(self, id_: str) -> bool:
        """Whether an output has that id."""
        return id_ in self.getOutputIds()

    def getIr(self) -> IrView:
        """The Ir that it is part of."""
        return IrView(self._below.ir)

    def getGraphString(self) -> str:
        """For a person."""
        return f"subgraph '{self._below.id}'" if self._below.id else "the main graph"

    def setCanBeRecursivelyAutodiffed(self, can: bool) -> None:
        """Whether autodiff of a caller may differentiate it too."""
        self._below.can_be_differentiated = can

    def createConnectedOp_SumOp(
        self, ins: Any, outs: Any, _opid: Any = None, _settings: Any = None
    ) -> OpView:
        """A sum of the inputs `ins` {index: id}, called `outs` {0: id}."""
        given = ins if isinstance(ins, dict) else dict(enumerate(ins))
        named = outs if isinstance(outs, dict) else dict(enumerate(outs))
        inputs = [self.getTensor(given[n])._below for n in sorted(given)]
        prefix = f"{self._below.id}/" if self._below.id else ""
        name = str(named[0]).removeprefix(prefix)
        return OpView(self._below.add("Sum", inputs, [name]))

    def __contains__(self, id_: object) -> bool:
        return id_ in self._below.tensors

    def __iter__(self) -> Iterator[OpView]:
        return iter(self.getOps())


class IrView(_View):
    """All graphs of a program."""

    _below: popir.Ir

    def getSessionOptions(self) -> Any:
        """The options, which may be set."""
        return self._below.options

    def getAllGraphs(self) -> list[GraphView]:
        """The main graph and all others."""
        return [GraphView(g) for g in self._below.graphs.values()]

    def getMainGraph(self) -> GraphView:
        """The graph that a run executes."""
        return GraphView(self._below.main)

    def getGraph(self, id_: Any) -> GraphView:
        """The graph of that id."""
        found = self._below.graphs.get(str(id_))
        if found is None:
            raise popir.IrError(f"there is no graph {id_!r}")
        return GraphView(found)

    def hasGraph(self, id_: Any) -> bool:
        """Whether there is such a graph."""
        return str(id_) in self._below.graphs

    def getTensor(self, id_: str) -> TensorView:
        """The tensor of that id, of any graph."""
        for graph in self._below.graphs.values():
            if id_ in graph.tensors:
                return TensorView(graph.tensors[id_])
        raise popir.IrError(f"there is no tensor {id_!r}")

    def getMainGraphTensors(self) -> _Ids:
        """The ids of the main graph."""
        return _Ids(self._below.main.tensors)

    def getDataFlow(self) -> Any:
        """What `setDataFlow` set."""
        return self._below.data_flow

    def setDataFlow(self, flow: Any) -> None:
        """Kept: streams say what is anchored."""
        self._below.data_flow = flow

    def getId(self) -> int:
        """Counted in the process."""
        return self._below.number

    def isPrepared(self) -> bool:
        """Whether a session was made of it."""
        return self._below.is_prepared

    def updateVertices(self) -> None:
        """Nothing waits for it here."""

    def setPatterns(self, patterns: Any) -> None:
        """Accepted: graphs are run as they are."""

    def logIr(self) -> None:
        """Writes all operators to stderr."""
        for graph in self._below.graphs.values():
            sys.stderr.write(f"{GraphView(graph).getGraphString()}\n")
            for op in graph.operators:
                ins, outs = ([t.id for t in ts] for ts in (op.inputs, op.outputs))
                sys.stderr.write(f"  {type_of(op.type)} {ins} -> {outs}\n")
