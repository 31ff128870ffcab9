"""Views of operators: one class for each class of the original's.

The classes are made from the table of operators in `popir`, so an operator that is
added there has its class here.
"""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

from typing import Any

import popir
from popart.attributes import ASKED, ConvOptions, Settings
from popart.enums import MatMulPartialsType
from popart.names import class_of, namespace_of, type_of
from popart.view import Region, TensorInfo, View, shown


class OpView(View, shows=popir.Operator):
    """An operator. Each is an instance of the class of its type."""

    _below: popir.Operator

    def __new__(cls, below: popir.Operator) -> OpView:
        """Make an instance of the class of the operator's type."""
        return object.__new__(class_for(below.type) if cls is OpView else cls)

    def __getattr__(self, name: str) -> Any:
        asked = ASKED.get(name)
        if asked is None or asked[0] not in self._below.attributes:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return lambda: asked[1](self._below.attributes[asked[0]])

    def _at(self, index: int) -> int:
        """Return an input's index below: a loop's trip count and condition are not
        inputs there."""
        return int(index) - self._skipped

    @property
    def _skipped(self) -> int:
        return 2 if self._below.type == "Loop" else 0

    @property
    def id(self) -> int:
        """Unique in its Ir."""
        return self._below.id

    def name(self) -> str:
        return self._below.name

    def opType(self) -> str:
        """Return its type, as the original calls it."""
        return type_of(self._below.type)

    def className(self) -> str:
        return class_of(self._below.type)

    def debugName(self) -> str:
        """Return scopes and type."""
        return "/".join((*self._below.settings.scopes, self.opType()))

    @property
    def settings(self) -> Settings:
        """Return the place of the operator."""
        return self.getSettings()

    def getSettings(self) -> Settings:
        return Settings._of(self._below.settings, self._below.name)

    def getScope(self) -> str:
        """Return the names around it."""
        return "/".join(self._below.settings.scopes)

    def getGraph(self) -> Any:
        return shown(self._below.graph)

    def getIr(self) -> Any:
        return shown(self._below.graph.ir)

    # Inputs and outputs.

    def _in(self, index: int) -> popir.IrTensor:
        at = self._at(index)
        if not self.hasInput(index):
            raise popir.IrError(f"{self._below} has no input {index}")
        return self._below.inputs[at]

    def _out(self, index: int) -> popir.IrTensor:
        if not self.hasOutput(index):
            raise popir.IrError(f"{self._below} has no output {index}")
        return self._below.outputs[index]

    def hasInput(self, index: int) -> bool:
        """Return whether that input is connected."""
        inputs, at = self._below.inputs, self._at(index)
        return 0 <= at < len(inputs) and inputs[at].kind != "unconnected"

    def hasOutput(self, index: int) -> bool:
        """Return whether that output is connected."""
        outputs = self._below.outputs
        return 0 <= index < len(outputs) and outputs[index].kind != "unconnected"

    def inTensor(self, index: int) -> Any:
        return shown(self._in(index))

    def outTensor(self, index: int) -> Any:
        return shown(self._out(index))

    def inId(self, index: int) -> str:
        return self._in(index).id

    def outId(self, index: int) -> str:
        return self._out(index).id

    def inInfo(self, index: int) -> TensorInfo:
        """Return shape and type of an input."""
        return TensorInfo(self._in(index).spec)

    def outInfo(self, index: int) -> TensorInfo:
        """Return shape and type of an output."""
        return TensorInfo(self._out(index).spec)

    def inShape(self, index: int) -> list[int]:
        return list(self._in(index).shape)

    def outShape(self, index: int) -> list[int]:
        return list(self._out(index).shape)

    def inRank(self, index: int) -> int:
        return len(self._in(index).shape)

    def outRank(self, index: int) -> int:
        return len(self._out(index).shape)

    def inTensorCount(self) -> int:
        """Return how many inputs are connected."""
        return len(self._below.connected)

    def outTensorCount(self) -> int:
        """Return how many outputs are connected."""
        return len(self.getOutputTensors())

    def getInputTensors(self) -> list[Any]:
        """Return the inputs, in order."""
        return [shown(t) for t in self._below.connected]

    def getOutputTensors(self) -> list[Any]:
        """Return the outputs, in order."""
        return [shown(t) for t in self._below.outputs if t.kind != "unconnected"]

    def getInputIds(self) -> list[Any]:
        """Return the ids of the inputs, in order."""
        return [t.id for t in self._below.connected]

    def getOutputIds(self) -> list[Any]:
        """Return the ids of the outputs, in order."""
        return [t.id for t in self.getOutputTensors()]

    def inIndices(self, tensor: Any) -> list[int]:
        inputs = enumerate(self._below.inputs)
        return [n + self._skipped for n, t in inputs if t is tensor._below]

    def outIndex(self, tensor: Any) -> int:
        return self._below.outputs.index(tensor._below)

    # The graphs that it runs.

    def getCalledGraphs(self) -> list[Any]:
        return [shown(g) for g in self._below.called_graphs]

    def getCalledGraphIds(self) -> list[Any]:
        return [each.id for each in self.getCalledGraphs()]

    def getCalledGraph(self) -> Any:
        return shown(self._below.called_graphs[0])

    def getThenGraph(self) -> Any:
        """Return the graph that a conditional runs for True."""
        return shown(self._below.called_graphs[0])

    def getElseGraph(self) -> Any:
        """Return the graph that a conditional runs for False."""
        return shown(self._below.called_graphs[1])

    def _branch(self, graph: int) -> int:
        """Return the index of the first input that a graph takes."""
        if self._below.type != "If":
            return 0
        return 1 + (len(self._below.called_graphs[0].inputs) if graph else 0)

    def opInToSubgraphInIndex(self, graph: int, index: int) -> int:
        """Return the index in a called graph of that input."""
        return int(index) - self._branch(graph)

    def subgraphInToOpInIndex(self, graph: int, index: int) -> int:
        """Return the index of a called graph's input."""
        return int(index) + self._branch(graph)

    def opOutToSubgraphOutIndex(self, graph: int, index: int) -> int:
        """Return the index in a called graph of that output."""
        return int(index) + (1 if self._below.type == "Loop" else 0)

    def subgraphOutToOpOutIndex(self, graph: int, index: int) -> int:
        """Return the index of a called graph's output."""
        return int(index) - (1 if self._below.type == "Loop" else 0)

    # Devices.

    def hasVirtualGraphId(self) -> bool:
        """Return whether it is on a device."""
        return self._below.settings.ipu is not None

    def getVirtualGraphId(self) -> int:
        """Return the device that it is on."""
        if self._below.settings.ipu is None:
            raise popir.IrError(f"{self._below} is on no device")
        return self._below.settings.ipu

    def getOptionalVGraphId(self) -> int | None:
        """Return its device, if it has one."""
        return self._below.settings.ipu

    def hasPipelineStage(self) -> bool:
        """Return False: there are no pipelines."""
        return False

    def hasExecutionPhase(self) -> bool:
        """Return False: there are no execution phases."""
        return False

    # Storage.

    def modifiesIndex(self, index: int) -> bool:
        """Return whether it changes that input."""
        return self._at(index) in popir.changed_inputs(self._below)

    def overwritesTensor(self, tensor: Any) -> bool:
        changed = popir.changed_inputs(self._below)
        return any(self._below.inputs[n] is tensor._below for n in changed)

    def modifiesTensor(self, tensor: Any) -> bool:
        return self.overwritesTensor(tensor)

    def modifies(self) -> bool:
        """Return whether it changes any input."""
        return bool(popir.changed_inputs(self._below))

    def doesAlias(self, index: int | None = None, output: int = 0) -> bool:
        """Return whether its result shares storage with an input."""
        record = self._below.record
        if record.put is not None:
            return True
        return record.writes and index in (None, 0) and output == 0

    def isOutplace(self) -> bool:
        """Return whether it neither changes nor shares storage."""
        return not self.modifies() and not self.doesAlias()

    def isInplaceViewChange(self) -> bool:
        """Return whether its result is a view."""
        return self._below.record.put is not None

    def addModified(self, index: int, regions: Any = ()) -> None:
        """Let the final value of that input be written back to the caller."""
        at = self._at(index)
        self._below.modified.add(at)
        if self._below.type == "Loop":
            (inside,) = self._below.called_graphs[0].operators
            inside.modified.add(at)

    def modifiedRegions(self, index: int) -> list[Region]:
        """Return the part of that input that it changes: all or nothing."""
        if not self.modifiesIndex(index):
            return []
        return [Region.getFull(self._in(index).shape)]

    # Changes to graphs.

    def connectInTensor(self, index: int, id_: Any, _ipu: Any = None) -> None:
        graph = self._below.graph
        tensor = graph.tensors.get(str(id_))
        if tensor is None:
            raise popir.IrError(f"graph {graph.id!r} has no tensor {id_!r}")
        graph.connect(self._below, self._at(index), tensor)

    def disconnectInTensor(self, index: int, _tensor: Any = None) -> None:
        """Disconnect an input; another can be connected."""
        popir.disconnect(self._below, self._at(index))

    def disconnectAllInputs(self) -> None:
        for index in range(len(self._below.inputs)):
            popir.disconnect(self._below, index)

    def disconnectAllOutputs(self) -> None:
        """Remove all outputs; the tensors stay, without a producer."""
        for index in range(len(self._below.outputs)):
            popir.disconnect_output(self._below, index)

    def connectOutTensor(self, index: int, id_: Any) -> None:
        """Make a tensor without a producer a result of the operator."""
        popir.connect_output(self._below, index, str(id_))

    def createAndConnectOutTensor(self, index: int, id_: Any) -> None:
        """Make a tensor of that id its result."""
        graph = self._below.graph
        if str(id_) in graph.tensors:
            raise popir.IrError(f"graph {graph.id!r} has a tensor {id_!r} already")
        popir.connect_output(self._below, index, str(id_))

    def cloneIntoGraph(self, graph: Any) -> Any:
        """Make a copy in `graph` with unconnected inputs and outputs."""
        return shown(popir.copy_into(graph._below, self._below))

    def setup(self) -> None:
        """Do nothing: shapes are known when an operator is made."""

    # Attributes of single operators.

    def hasIgnoreIndex(self) -> bool:
        """Return whether some labels are ignored."""
        return self._below.attributes.get("ignore_index") is not None

    def getPartialsType(self) -> MatMulPartialsType:
        """Return the type of a product's partial sums. It is stored and has no
        effect.
        """
        return MatMulPartialsType[self._below.attributes.get("partials_type", "FLOAT")]

    def getConvOptions(self) -> ConvOptions:
        """Return a copy of a convolution's hints."""
        return ConvOptions(self._below.attributes)

    def setConvOptions(self, options: ConvOptions) -> None:
        """Replace a convolution's hints."""
        self._below.attributes["hints"] = {
            "proportions": list(options.availableMemoryProportions),
            "partials": list(options.partialsTypes),
            "dithering": list(options.enableConvDithering),
        }

    def isOptimizerOp(self) -> bool:
        """Return whether it updates an accumulator or a weight."""
        return self._below.type in (
            *("Accumulate", "AccumulatorScale", "SparseAccumulate", "CopyVarUpdate"),
            *("AdamUpdater", "AdamVarUpdate", "ScaledAddLhsInplace"),
        )

    def getHostStreamTensorId(self) -> str:
        """Return the id of the stream that it loads or stores."""
        stream: popir.IrTensor = self._below.attributes["stream"]
        return stream.id

    def __repr__(self) -> str:
        return f"{self._below.id} ({self.opType()})"


_classes: dict[tuple[str, str], type[OpView]] = {}


def class_for(ours: str) -> type[OpView]:
    """Return the class of an operator type, made at its first use."""
    namespace, name = namespace_of(ours), class_of(ours)
    found = _classes.get((namespace, name))
    if found is None:
        module = ".".join(filter(None, ("popart._internal.ir.op", namespace)))
        words = {"__module__": module, "__doc__": f"An operator `{type_of(ours)}`."}
        found = _classes[namespace, name] = type(name, (OpView,), words)
    return found


def classes_of(namespace: str) -> list[str]:
    """Return the names of all classes of a namespace."""
    for ours in popir.operator_types():
        class_for(ours)
    return sorted(name for room, name in _classes if room == namespace)


def class_called(namespace: str, name: str) -> type[OpView]:
    """Return the class with that name; AttributeError if no operator has it."""
    if (namespace, name) not in _classes:
        classes_of(namespace)
    found = _classes.get((namespace, name))
    if found is None:
        raise AttributeError(
            f"there is no class {name!r} among the operators"
            + (f" of {namespace!r}" if namespace else "")
        )
    return found
