"""Inputs and outputs of a Python model: found in its module, sent to the client."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Annotated, Any, TypeAlias

from engine.errors import InvalidModel
from engine.programs.python_tensors import ANSWER, MORE, ROUTE, STEP
from popef_io import DataType
from popgate_python_interface.routes import find_routes

#: The name of a function that is a model.
FUNCTION = "predict"
#: The name of a function's only output.
OUTPUT = "output"
MAX_RANK = 32
MAX_TENSORS = 1024
MAX_NAME = 1000

#: The types, by their names in the Open Inference Protocol.
_TYPES = {
    "BOOL": DataType.BOOL,
    "UINT8": DataType.U8,
    "UINT16": DataType.U16,
    "UINT32": DataType.U32,
    "UINT64": DataType.U64,
    "INT8": DataType.S8,
    "INT16": DataType.S16,
    "INT32": DataType.S32,
    "INT64": DataType.S64,
    "FP16": DataType.F16,
    "FP32": DataType.F32,
    "FP64": DataType.F64,
    "BF16": DataType.BF16,
    "BYTES": DataType.STRING,
}
_TENSOR = re.compile(r"([A-Z0-9]+) *\[([-0-9, ]*)\]")

Target: TypeAlias = Callable[..., Any]
"""The class or function of a model."""


@dataclass(frozen=True, slots=True)
class PythonTensor:
    """An input or output. -1 in `shape` means any size."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        named = {data_type: name for name, data_type in _TYPES.items()}
        return f"{named[self.data_type]}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class PythonInterface:
    """The tensors of a model, and whether rows of requests may run together.

    `streams` is set if the model gives any number of responses to a request, one in
    each run. Then `STEP` and `MORE` are among the tensors. `routes` is the document of
    its routes (`OPTION_ROUTES`), and empty if it has none. With routes, `ROUTE` and
    `ANSWER` are among the tensors.
    """

    inputs: tuple[PythonTensor, ...]
    outputs: tuple[PythonTensor, ...]
    batching: bool = False
    streams: bool = False
    routes: str = ""

    def streaming(self, label: str) -> PythonInterface:
        """Return the interface for several responses. Raises InvalidModel."""
        if self.batching:
            raise InvalidModel(
                f"{label} is a generator, which answers one request at a time; set "
                "batching = False"
            )
        step = PythonTensor(STEP, DataType.S64, (3,))
        more = PythonTensor(MORE, DataType.BOOL, (1,))
        return replace(
            self,
            inputs=(*self.inputs, step),
            outputs=(*self.outputs, more),
            streams=True,
        )

    def routed(self, target: Target) -> PythonInterface:
        """Return the interface with the routes of the class. Raises InvalidModel."""
        app = find_routes(target)
        if app is None:
            return self
        # A free size makes runs compare shapes. So requests to routes are not mixed
        # with other requests, which lack this input.
        shape = (-1 if self.batching else 1, -1)
        return replace(
            self,
            inputs=(*self.inputs, PythonTensor(ROUTE, DataType.STRING, shape)),
            outputs=(*self.outputs, PythonTensor(ANSWER, DataType.STRING, shape)),
            routes=app.document,
        )

    def to_message(self) -> dict[str, Any]:
        def tensors(group: Iterable[PythonTensor]) -> list[list[Any]]:
            return [[t.name, t.data_type.name, list(t.shape)] for t in group]

        return {
            "inputs": tensors(self.inputs),
            "outputs": tensors(self.outputs),
            "batching": self.batching,
            "streams": self.streams,
            "routes": self.routes,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> PythonInterface:
        def tensors(group: Sequence[Any]) -> tuple[PythonTensor, ...]:
            return tuple(
                PythonTensor(str(name), DataType[data_type], tuple(map(int, shape)))
                for name, data_type, shape in group
            )

        return cls(
            tensors(message["inputs"]),
            tensors(message["outputs"]),
            bool(message["batching"]),
            bool(message["streams"]),
            str(message["routes"]),
        )


def parse_tensor(name: object, text: object) -> PythonTensor:
    """Return a tensor as authors write it: `FP32[-1,3]`. Raises InvalidModel."""
    expected = 'expected a type and a shape, as in "FP32[-1,224]" or "BYTES[-1]"'
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidModel(
            f"the name of a tensor must be a string of 1 to {MAX_NAME} characters, got "
            f"{name!r}"
        )
    match = _TENSOR.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise InvalidModel(f"tensor {name!r} is {text!r}; {expected}")
    if match[1] not in _TYPES:
        known = ", ".join(_TYPES)
        raise InvalidModel(
            f"tensor {name!r} has unknown type {match[1]}; expected one of {known}"
        )
    try:
        shape = tuple(int(d) for d in match[2].split(",") if match[2].strip())
    except ValueError:
        raise InvalidModel(f"tensor {name!r} is {text!r}; {expected}") from None
    if len(shape) > MAX_RANK or any(not -1 <= d < 1 << 62 for d in shape):
        raise InvalidModel(
            f"tensor {name!r} has shape {list(shape)}; expected at most {MAX_RANK} "
            "sizes, each at least 0, or -1 for any"
        )
    return PythonTensor(name, _TYPES[match[1]], shape)


def find_model(
    module: ModuleType, adapted: type[Any] | None = None
) -> tuple[Target, PythonInterface]:
    """Return the model that a module defines, with its inputs and outputs.

    The model is the only class with `inputs`, `outputs` and ``__call__``, the function
    `predict`, or the class `adapted` from one of another kind. Raises InvalidModel,
    which states the expected form.
    """
    if adapted is not None:
        return adapted, _called(adapted.__call__, _of_class(adapted), adapted.__name__)
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and all(hasattr(value, name) for name in ("inputs", "outputs"))
    ]
    if len(classes) > 1:
        names = ", ".join(each.__name__ for each in classes)
        raise InvalidModel(f"expected one model class, got several: {names}")
    function = getattr(module, FUNCTION, None)
    if not classes and not inspect.isfunction(function):
        raise InvalidModel(
            "the file defines no model: expected a class with inputs, outputs and "
            f"__call__, or a function {FUNCTION}"
        )
    if classes:
        interface = _of_class(classes[0])
        label = f"{classes[0].__name__}.__call__"
        interface = _called(classes[0].__call__, interface, label)
        return classes[0], interface.routed(classes[0])
    assert function is not None
    interface = _of_function(function, getattr(module, "batching", False))
    return function, _called(function, interface, FUNCTION)


def _of_class(found: type[Any]) -> PythonInterface:
    if not any("__call__" in vars(base) for base in found.__mro__):
        raise InvalidModel(f"{found.__name__} has no __call__")
    groups = []
    for kind in ("inputs", "outputs"):
        tensors = getattr(found, kind)
        if not isinstance(tensors, Mapping) or not tensors:
            raise InvalidModel(
                f"{found.__name__}.{kind} must be a mapping of names to tensors, as in "
                f'{{"text": "BYTES[-1]"}}, got {tensors!r}'
            )
        groups.append(tuple(parse_tensor(*item) for item in tensors.items()))
    return _checked(groups[0], groups[1], getattr(found, "batching", False))


def _of_function(function: Callable[..., Any], batching: object) -> PythonInterface:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # evaluating annotations runs the author's code
        raise InvalidModel(
            f"cannot read the annotations of {FUNCTION}: {error}"
        ) from None
    given = hints.pop("return", None)
    names = inspect.signature(function).parameters
    inputs = [_annotated(name, hints.get(name)) for name in names]
    fields = None
    if typing.is_typeddict(given):
        fields = typing.get_type_hints(given, include_extras=True)
    outputs = [_annotated(*item) for item in (fields or {OUTPUT: given}).items()]
    return _checked(tuple(inputs), tuple(outputs), batching)


def _annotated(name: str, hint: Any) -> PythonTensor:
    texts = []
    if typing.get_origin(hint) is Annotated:
        texts = [text for text in hint.__metadata__ if isinstance(text, str)]
    if len(texts) != 1:
        what = "the result" if name == OUTPUT else repr(name)
        raise InvalidModel(
            f"{what} of {FUNCTION} must be annotated with its type and shape, as in "
            f'Annotated[np.ndarray, "FP32[-1,224]"], got {hint!r}'
        )
    return parse_tensor(name, texts[0])


def _checked(
    inputs: tuple[PythonTensor, ...], outputs: tuple[PythonTensor, ...], batching: Any
) -> PythonInterface:
    if not inputs or len(inputs) > MAX_TENSORS or len(outputs) > MAX_TENSORS:
        raise InvalidModel(
            f"a model must have 1 to {MAX_TENSORS} inputs and at most {MAX_TENSORS} "
            f"outputs, got {len(inputs)} and {len(outputs)}"
        )
    if not isinstance(batching, bool):
        raise InvalidModel(f"batching must be True or False, got {batching!r}")
    for tensor in (*inputs, *outputs):
        if tensor.name in (STEP, MORE, ROUTE, ANSWER):
            raise InvalidModel(
                f"the name {tensor.name!r} is reserved; choose another for the tensor"
            )
    for tensor in (*inputs, *outputs) if batching else ():
        if tensor.shape[:1] != (-1,):
            raise InvalidModel(
                "batching is True, so the first size of every tensor must be -1; "
                f"{tensor.name!r} is {tensor}"
            )
    return PythonInterface(inputs, outputs, batching)


def _called(
    call: Callable[..., Any], interface: PythonInterface, label: str
) -> PythonInterface:
    """Return the interface with `call`. Raises InvalidModel if `call` does not accept
    the inputs.
    """
    names = [tensor.name for tensor in interface.inputs]
    itself = [] if label == FUNCTION else [None]
    try:
        inspect.signature(call).bind(*itself, **dict.fromkeys(names))
    except TypeError as error:
        raise InvalidModel(
            f"{label} does not accept the inputs {', '.join(names)}: {error}"
        ) from None
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        return interface.streaming(label)
    return interface
