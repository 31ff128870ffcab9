"""Custom operators in Python. In the original they are written in C++.

An operator is a class: the shapes and types of its results, and how it becomes ONNX
nodes or a function of NumPy arrays, with its gradient.
docs/how-to/write-popxl.md has examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

import popir
from popir import RECORDS, Builder, Grad, GradRule, OpCall, Record, Value, has_gradient
from popxl.dtypes import dtype
from popxl.ops.utils import emit
from popxl.tensor import Tensor
from popxl.tensor_spec import TensorSpec

_Array = np.ndarray[Any, Any]


class CustomOperator:
    """An operator of your own. Make one and call it with tensors, like any operator.

    Override `results`, and either `onnx` or `numpy`. ONNX nodes run on every device and
    can be exported and served; a NumPy function runs in sessions on 'cpu' and
    'ipu_model' only. To differentiate it, override `onnx_gradient` or
    `numpy_gradient` too.

    Parameters are attributes of the instance: write `__init__`, or use a dataclass.
    """

    type: ClassVar[str] = ""
    """The type of the operator in graphs; the name of the class if empty."""
    differentiable: ClassVar[tuple[int, ...] | None] = None
    """The inputs that have gradients; None: all numbers."""

    def results(self, *inputs: Any, **_: Any) -> TensorSpec | Sequence[TensorSpec]:
        """Return shape and type of the result, or of each result.

        inputs: a TensorSpec for each. Raise ValueError if the inputs do not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override `results`")

    def onnx(self, b: Builder, *inputs: Any, **_: Any) -> Value | Sequence[Value]:
        """Return the result, or each, made of ONNX nodes.

        inputs: values with `+ - * /`, `shape` and `dtype`. b: makes other nodes.
        """
        raise NotImplementedError

    def numpy(self, *inputs: Any, **_: Any) -> _Array | Sequence[_Array]:
        """Return the result, or each. The arrays may be kept but not changed."""
        raise NotImplementedError

    def onnx_gradient(
        self,
        b: Builder,
        grads: Sequence[Value],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
    ) -> Value | Sequence[Value]:
        """Return the gradient of each differentiable input.

        grads: the gradients of the results.
        """
        raise NotImplementedError

    def numpy_gradient(
        self,
        grads: Sequence[_Array],
        inputs: Sequence[_Array],
        outputs: Sequence[_Array],
    ) -> _Array | Sequence[_Array]:
        """Return the gradient of each differentiable input."""
        raise NotImplementedError

    def __call__(self, *tensors: Tensor, name: str | None = None) -> Any:
        """Make the operator in the current graph.

        Return its result, or a tuple if `results` returns a sequence. name: of the
        results; default: the type of the operator in lower case and `_out`.
        """
        record = _record(self)
        base = name or f"{record.type.lower()}_out"
        given = {f"inputs[{n}]": tensor for n, tensor in enumerate(tensors)}
        made = emit(record, given, [base] * 64)
        specs = [t.spec for t in tensors]
        return made[0] if isinstance(self.results(*specs), TensorSpec) else made

    def _has(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(CustomOperator, method)


def _record(operator: CustomOperator) -> Record:
    kind = operator.type or type(operator).__name__
    if kind in RECORDS:
        raise ValueError(
            f"An operator {kind} exists already; set `type` of yours to another name"
        )
    if not operator._has("onnx") and not operator._has("numpy"):
        raise NotImplementedError(f"{kind} overrides neither `onnx` nor `numpy`")

    def infer(call: OpCall) -> list[popir.Spec]:
        found = operator.results(*(_shown(spec) for spec in call.inputs))
        specs = [found] if isinstance(found, TensorSpec) else list(found)
        return [spec._below for spec in specs]

    def lower(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
        return _checked(kind, operator.onnx(b, *values), infer(call))

    def host(call: OpCall, arrays: list[_Array]) -> list[_Array]:
        return _listed(operator.numpy(*arrays))

    def grads(call: OpCall) -> list[GradRule] | None:
        found = _rule(operator, kind, call)
        return None if found is None else [found]

    if operator._has("onnx"):
        return Record(kind, infer, lower, grads, is_users=True)
    return Record(kind, infer, None, grads, host=host, is_users=True)


def _rule(operator: CustomOperator, kind: str, call: OpCall) -> GradRule | None:
    """Return the function that computes all gradients; None if the operator stops
    them.
    """
    is_onnx = operator._has("onnx_gradient")
    if not is_onnx and not operator._has("numpy_gradient"):
        return None
    gives = operator.differentiable
    if gives is None:
        gives = tuple(n for n, s in enumerate(call.inputs) if has_gradient(s))
    sizes = {"g": len(call.outputs), "i": len(call.inputs), "o": len(call.outputs)}
    needs = tuple(f"{word}{n}" for word, count in sizes.items() for n in range(count))

    def parts(values: Sequence[Any]) -> list[list[Any]]:
        left = list(values)
        return [[left.pop(0) for _ in range(count)] for count in sizes.values()]

    def lower(g: Grad) -> list[Value]:
        made = operator.onnx_gradient(g.b, *parts([g[need] for need in needs]))
        return _checked(f"{kind}Grad", made, [g.call.inputs[n] for n in gives])

    def host(_: OpCall, arrays: list[_Array]) -> list[_Array]:
        return _listed(operator.numpy_gradient(*parts(arrays)))

    own_host = None if is_onnx else host
    return GradRule(f"{kind}Grad", needs, gives, lower, own_host, is_users=True)


def _shown(spec: popir.Spec) -> TensorSpec:
    return TensorSpec(spec.shape, dtype.as_dtype(spec.dtype), spec.meta_shape)


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]


def _checked(kind: str, made: Any, wanted: Sequence[popir.Spec]) -> list[Value]:
    values: list[Value] = _listed(made)
    found = [(v.dtype, v.shape) for v in values]
    if found != [(spec.dtype.carrier, spec.shape) for spec in wanted]:
        raise popir.IrError(
            f"the nodes of {kind} give {[f'{d}{list(s)}' for d, s in found]}, not "
            f"{[f'{s.dtype}{list(s.shape)}' for s in wanted]}"
        )
    return values
