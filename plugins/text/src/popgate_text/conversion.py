"""Changes of the ONNX graph: pooling, dense layers, normalising, scores.

The graph returns one vector for each text, not for each token. Runs in the process that
compiles. The nodes separate texts from padding by the attention mask alone, so a text
has the same result beside longer ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

#: Inputs that the tokenizer fills.
INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
#: Outputs with a vector for each token, and outputs with one vector for each text.
_TOKENS: Final = ("last_hidden_state", "token_embeddings", "hidden_states")
_WHOLE: Final = ("sentence_embedding", "pooled_embeddings", "embeddings")
_PREFIX: Final = "popgate_text/"


def convert(model: Any, recipe: Mapping[str, Any]) -> None:
    """Change an `onnx.ModelProto` by the recipe of a `TextModel`. Raises ValueError."""
    graph = model.graph
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = [v.name for v in graph.input if v.name not in initialized]
    for name in inputs:
        if name not in INPUTS:
            known = ", ".join(INPUTS)
            raise ValueError(
                f"input '{name}' is not an input of text models, which are {known}"
            )
    if "input_ids" not in inputs:
        raise ValueError(
            "the model has no input 'input_ids', so it is not a text model"
        )
    _Writer(model, recipe).write()


class _Writer:
    """Appends nodes to one graph."""

    def __init__(self, model: Any, recipe: Mapping[str, Any]) -> None:
        self.model = model
        self.graph = model.graph
        self.recipe = recipe
        self.opset = next(
            entry.version
            for entry in model.opset_import
            if entry.domain in ("", "ai.onnx")
        )
        self._count = 0
        self.rows = _rows(self.graph)

    def write(self) -> None:
        kind = self.recipe["kind"]
        if kind == "embedding":
            outputs = self._embedding()
        elif kind == "splade":
            outputs = self._sparse()
        else:
            outputs = self._scores()
        del self.graph.output[:]
        self.graph.output.extend(outputs)

    # -- kinds

    def _embedding(self) -> list[Any]:
        named = {value.name: value for value in self.graph.output}
        tokens = next((named[name] for name in _TOKENS if name in named), None)
        whole = next((named[name] for name in _WHOLE if name in named), None)
        if tokens is None and whole is None and len(named) == 1:
            (only,) = named.values()
            tokens, whole = (only, None) if _rank(only) == 3 else (None, only)
        pooling = self.recipe["pooling"]
        if tokens is not None and pooling:
            hidden = self._float(tokens.name)
            pooled = [self._pool(mode, hidden) for mode in pooling]
            vector = (
                pooled[0]
                if len(pooled) == 1
                else self._node("Concat", *pooled, axis=-1)
            )
            for layer in self.recipe["dense"]:
                vector = self._dense(vector, layer)
        elif whole is not None:
            vector = self._float(whole.name)
        elif tokens is not None:
            raise ValueError(
                "no file of the folder says how token vectors are pooled "
                "(1_Pooling/config.json is missing); set pooling in the section [text] "
                "of config.toml"
            )
        else:
            known = ", ".join((*_TOKENS, *_WHOLE))
            raise ValueError(
                f"the model's outputs are {sorted(named)}; expected one of {known}"
            )
        norm = self._reduce("ReduceL2", vector, -1)
        if self.recipe["normalize"]:
            least = self._constant(np.float32(1e-12))
            vector = self._node("Div", vector, self._node("Max", norm, least))
        outputs = [self._output(vector, "embedding"), self._output(norm, "norm", 1)]
        if tokens is not None and _rank(tokens) == 3:
            outputs.append(self._token_vectors(tokens))
        return outputs

    def _token_vectors(self, tokens: Any) -> Any:
        """Return the output with the vector of each token, in the model's own shape."""
        found = self._output(self._float(tokens.name), self.recipe["tokens"])
        found.type.tensor_type.shape.CopyFrom(tokens.type.tensor_type.shape)
        return found

    def _scores(self) -> list[Any]:
        logits = self._float(self._output_named("logits"))
        if self.recipe["kind"] == "reranker" or self.recipe["sigmoid"]:
            scores = self._node("Sigmoid", logits)
        else:
            scores = self._node("Softmax", logits, axis=-1)
        return [self._output(scores, "scores"), self._output(logits, "raw_scores")]

    def _sparse(self) -> list[Any]:
        logits = self._float(self._output_named("logits"))
        one = self._constant(np.float32(1))
        positive = self._node("Relu", logits)
        weights = self._node("Log", self._node("Add", positive, one))
        masked = self._node("Mul", weights, self._mask())
        return [
            self._output(self._reduce("ReduceMax", masked, 1, keep=False), "weights")
        ]

    def _output_named(self, name: str) -> str:
        names = [value.name for value in self.graph.output]
        if name in names:
            return name
        if len(names) == 1:
            return str(names[0])
        raise ValueError(f"the model's outputs are {sorted(names)}; expected '{name}'")

    # -- pooling

    def _mask(self) -> str:
        """Return the attention mask as float32 [rows, tokens, 1]."""
        return self._unsqueeze(self._float("attention_mask"), 2)

    def _pool(self, mode: str, hidden: str) -> str:
        if mode == "cls":
            first = self._constant(np.int64(0))
            return self._node("Gather", hidden, first, axis=1)
        mask = self._mask()
        if mode == "max":
            least = self._constant(np.float32(-1e9))
            there = self._node("Greater", mask, self._constant(np.float32(0)))
            return self._reduce(
                "ReduceMax", self._node("Where", there, hidden, least), 1, keep=False
            )
        weights = mask
        if mode in ("weightedmean", "lasttoken"):
            axis = self._constant(np.int64(1))
            places = self._node("CumSum", mask, axis)
            weights = self._node("Mul", places, mask)
        if mode == "lasttoken":
            last = self._reduce("ReduceMax", weights, 1)
            weights = self._node(
                "Mul", self._float(self._node("Equal", weights, last)), mask
            )
        summed = self._sum(self._node("Mul", hidden, weights), 1)
        least = self._constant(np.float32(1e-9))
        count = self._node("Max", self._sum(weights, 1), least)
        if mode == "mean_sqrt_len_tokens":
            count = self._node("Sqrt", count)
        return self._node("Div", summed, count)

    def _dense(self, vector: str, layer: Mapping[str, Any]) -> str:
        from safetensors.numpy import load_file

        weights = load_file(layer["file"])
        if "linear.weight" not in weights:
            raise ValueError(f"{layer['file']} has no tensor linear.weight")
        kernel = np.ascontiguousarray(weights["linear.weight"].T.astype(np.float32))
        vector = self._node("MatMul", vector, self._constant(kernel))
        if "linear.bias" in weights:
            bias = self._constant(weights["linear.bias"].astype(np.float32))
            vector = self._node("Add", vector, bias)
        match layer["activation"]:
            case "Tanh" | "Sigmoid" as name:
                return self._node(name, vector)
            case "ReLU":
                return self._node("Relu", vector)
            case "SiLU":
                return self._node("Mul", vector, self._node("Sigmoid", vector))
            case "GELU":
                root = self._constant(np.float32(np.sqrt(2)))
                erf = self._node("Erf", self._node("Div", vector, root))
                one, half = (
                    self._constant(np.float32(1)),
                    self._constant(np.float32(0.5)),
                )
                return self._node(
                    "Mul", self._node("Mul", vector, half), self._node("Add", erf, one)
                )
        return vector

    # -- nodes

    def _node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self._count += 1
        name = f"{_PREFIX}{self._count}"
        self.graph.node.append(
            helper.make_node(kind, list(inputs), [name], name=name, **attributes)
        )
        return name

    def _constant(self, value: Any) -> str:
        self._count += 1
        name = f"{_PREFIX}{self._count}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _float(self, name: str) -> str:
        return self._node("Cast", name, to=TensorProto.FLOAT)

    def _unsqueeze(self, name: str, axis: int) -> str:
        if self.opset < 13:
            return self._node("Unsqueeze", name, axes=[axis])
        return self._node("Unsqueeze", name, self._constant(np.array([axis], np.int64)))

    def _sum(self, name: str, axis: int) -> str:
        if self.opset < 13:
            return self._node("ReduceSum", name, axes=[axis], keepdims=0)
        axes = self._constant(np.array([axis], np.int64))
        return self._node("ReduceSum", name, axes, keepdims=0)

    def _reduce(self, kind: str, name: str, axis: int, *, keep: bool = True) -> str:
        if self.opset < 18:
            return self._node(kind, name, axes=[axis], keepdims=int(keep))
        axes = self._constant(np.array([axis], np.int64))
        return self._node(kind, name, axes, keepdims=int(keep))

    def _output(self, found: str, name: str, size: int | None = None) -> Any:
        self.graph.node.append(
            helper.make_node("Identity", [found], [name], name=f"{_PREFIX}{name}")
        )
        shape: Sequence[Any] = (self.rows, size)
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _rows(graph: Any) -> str:
    """Return the name of the first dimension of the token ids."""
    value = next(v for v in graph.input if v.name == "input_ids")
    dims = value.type.tensor_type.shape.dim
    return str(dims[0].dim_param or "rows") if dims else "rows"


def _rank(value: Any) -> int:
    return len(value.type.tensor_type.shape.dim)
