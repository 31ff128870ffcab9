"""The models that Triton's example clients and HTTP test scripts call.

Written as ONNX files with a ``config.toml`` each. Shapes, names and numbers are those
of the originals; `docs/how-to/migrate-from-triton.md` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import onnx

OPSET = 17
#: The duration of a request to `custom_identity_int32`, in seconds.
EXECUTE_DELAY = 3.0

_Dims: TypeAlias = tuple[int | str, ...]
_Tensors: TypeAlias = Mapping[str, tuple[str, _Dims]]
_Nodes: TypeAlias = Iterable[tuple[str, str, str, dict[str, Any]]]

_BATCHED = """\
batching = true
max_batch_size = 8
max_request_rows = 8
"""


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """One model: tensors by name as (ONNX type, dimensions), nodes, and options.

    A node is (operator, inputs, output, attributes); names are separated by spaces.
    `constants` are (ONNX type, value) of scalars.
    """

    inputs: _Tensors
    outputs: _Tensors
    nodes: _Nodes
    config: str = _BATCHED
    constants: Mapping[str, tuple[str, Any]] = field(default_factory=dict)

    def onnx(self) -> onnx.ModelProto:
        """Return the ONNX model; checked."""
        import onnx
        from onnx import TensorProto, helper

        def infos(tensors: _Tensors) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(name, getattr(TensorProto, kind), dims)
                for name, (kind, dims) in tensors.items()
            ]

        nodes = [
            helper.make_node(operator, names.split(), [output], **attributes)
            for operator, names, output, attributes in self.nodes
        ]
        constants = [
            helper.make_tensor(name, getattr(TensorProto, kind), [], [value])
            for name, (kind, value) in self.constants.items()
        ]
        graph = helper.make_graph(
            nodes, "model", infos(self.inputs), infos(self.outputs), constants
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
        )
        onnx.checker.check_model(model)
        return model


def write_models(folder: Path) -> None:
    """Write all models into `folder`, as a model repository. Raises OSError."""
    for name, make in MODELS.items():
        model = make()
        (folder / name / "1").mkdir(parents=True)
        path = folder / name / "1" / "model.onnx"
        path.write_bytes(model.onnx().SerializeToString(deterministic=True))
        (folder / name / "config.toml").write_text(model.config, encoding="utf-8")


def _cast(kind: str) -> dict[str, Any]:
    from onnx import TensorProto

    return {"to": getattr(TensorProto, kind)}


def _add_and_subtract(kind: str) -> ModelRecipe:
    pair = {f"INPUT{i}": (kind, ("N", 16)) for i in (0, 1)}
    return ModelRecipe(
        pair,
        {f"OUTPUT{i}": (kind, ("N", 16)) for i in (0, 1)},
        [
            ("Add", "INPUT0 INPUT1", "OUTPUT0", {}),
            ("Sub", "INPUT0 INPUT1", "OUTPUT1", {}),
        ],
    )


def _simple_string() -> ModelRecipe:
    """Sum and difference of numbers that are written in decimal digits."""
    return ModelRecipe(
        {f"INPUT{i}": ("STRING", ("N", 16)) for i in (0, 1)},
        {f"OUTPUT{i}": ("STRING", ("N", 16)) for i in (0, 1)},
        [
            ("Cast", "INPUT0", "a", _cast("INT32")),
            ("Cast", "INPUT1", "b", _cast("INT32")),
            ("Add", "a b", "sum", {}),
            ("Sub", "a b", "difference", {}),
            ("Cast", "sum", "OUTPUT0", _cast("STRING")),
            ("Cast", "difference", "OUTPUT1", _cast("STRING")),
        ],
        _BATCHED + '[example]\nINPUT0 = [["1", "2", "3", "4", "5", "6", "7", "8", '
        '"9", "10", "11", "12", "13", "14", "15", "16"]]\n'
        'INPUT1 = [["1", "1", "1", "1", "1", "1", "1", "1", '
        '"1", "1", "1", "1", "1", "1", "1", "1"]]\n',
    )


def _identity(
    kind: str, dims: _Dims, count: int = 1, config: str = _BATCHED
) -> ModelRecipe:
    return ModelRecipe(
        {f"INPUT{i}": (kind, dims) for i in range(count)},
        {f"OUTPUT{i}": (kind, dims) for i in range(count)},
        [("Identity", f"INPUT{i}", f"OUTPUT{i}", {}) for i in range(count)],
        config,
    )


_DELAYED = f"""\
[responses]
delay = {EXECUTE_DELAY}
"""
_SEQUENCE = """\
[sequence]
max_idle = 5.0
start = "START"
ready = "READY"
"""


def _simple_sequence() -> ModelRecipe:
    """Return the input, and 1 more in the first request of a sequence."""
    return ModelRecipe(
        dict.fromkeys(("INPUT", "START", "READY"), ("INT32", ("N", 1))),
        {"OUTPUT": ("INT32", ("N", 1))},
        [("Add", "INPUT START", "started", {}), ("Mul", "started READY", "OUTPUT", {})],
        _BATCHED + _SEQUENCE,
    )


def _simple_dyna_sequence() -> ModelRecipe:
    """Make a model like `simple_sequence` that adds the identifier in the
    last request.
    """
    names = ("INPUT", "START", "READY", "END")
    return ModelRecipe(
        {**dict.fromkeys(names, ("INT32", ("N", 1))), "CORRID": ("UINT64", ("N", 1))},
        {"OUTPUT": ("INT32", ("N", 1))},
        [
            ("Cast", "CORRID", "id", _cast("INT32")),
            ("Mul", "id END", "last", {}),
            ("Add", "INPUT START", "started", {}),
            ("Add", "started last", "sum", {}),
            ("Mul", "sum READY", "OUTPUT", {}),
        ],
        _BATCHED + _SEQUENCE + 'end = "END"\ncorrelation_id = "CORRID"\n',
    )


def _simple_string_dyna_sequence() -> ModelRecipe:
    """Return the sum of a sequence's inputs; the last request adds the identifier."""
    names = ("INPUT", "END", "READY", "INPUT_STATE")
    return ModelRecipe(
        {**dict.fromkeys(names, ("INT32", ("N", 1))), "CORRID": ("STRING", ("N", 1))},
        dict.fromkeys(("OUTPUT", "OUTPUT_STATE"), ("INT32", ("N", 1))),
        [
            ("Add", "INPUT INPUT_STATE", "OUTPUT_STATE", {}),
            ("Cast", "CORRID", "id", _cast("INT32")),
            ("Mul", "id END", "last", {}),
            ("Add", "OUTPUT_STATE last", "sum", {}),
            ("Mul", "sum READY", "OUTPUT", {}),
        ],
        _BATCHED
        + _SEQUENCE.replace('start = "START"', 'end = "END"')
        + 'correlation_id = "CORRID"\n[[sequence.state]]\n'
        + 'input = "INPUT_STATE"\noutput = "OUTPUT_STATE"\n',
    )


def _mock_llm() -> ModelRecipe:
    """Repeat its input: once, or `REPETITION` times if `STREAM` is true."""
    one, scalar = (1, 1), ()
    return ModelRecipe(
        {
            "PROMPT": ("STRING", one),
            "STREAM": ("BOOL", one),
            "input_ids": ("INT32", (1, "L")),
            "STEP": ("INT64", scalar),
            "REPETITION": ("INT64", scalar),
            "DELAY": ("FLOAT", scalar),
            "FAIL_LAST": ("BOOL", scalar),
            "OUTPUT_0_DIM": ("BOOL", (1,)),
        },
        {
            "TEXT": ("STRING", (1, "N")),
            "MORE": ("BOOL", one),
            "EMIT": ("BOOL", one),
            "ERROR": ("STRING", one),
            "WAIT": ("FLOAT", one),
        },
        [
            ("Not", "OUTPUT_0_DIM", "says_it", {}),
            ("Compress", "PROMPT says_it", "TEXT", {"axis": 1}),
            # The number of responses, and whether an error follows them.
            ("Where", "STREAM REPETITION one", "responses", {}),
            ("And", "STREAM FAIL_LAST", "fails", {}),
            ("Cast", "fails", "failures", _cast("INT64")),
            ("Add", "responses failures", "steps", {}),
            ("Less", "STEP responses", "EMIT", {}),
            ("Add", "STEP one", "next", {}),
            ("Less", "next steps", "MORE", {}),
            ("Not", "EMIT", "is_over", {}),
            ("And", "fails is_over", "fails_now", {}),
            ("Where", "fails_now text none", "ERROR", {}),
            ("And", "STREAM EMIT", "waits", {}),
            ("Where", "waits DELAY zero", "WAIT", {}),
        ],
        """\
batching = false
optional_inputs = ["input_ids"]
[responses]
more = "MORE"
emit = "EMIT"
error = "ERROR"
delay = "WAIT"
step = "STEP"
[responses.parameters]
REPETITION = 1
DELAY = 0.0
FAIL_LAST = false
OUTPUT_0_DIM = false
""",
        {
            "one": ("INT64", 1),
            "zero": ("FLOAT", 0.0),
            "text": ("STRING", b"An Error Occurred"),
            "none": ("STRING", b""),
        },
    )


#: Models by name. Each is made when it is written.
MODELS: Mapping[str, Callable[[], ModelRecipe]] = MappingProxyType(
    {
        "simple": lambda: _add_and_subtract("INT32"),
        "simple_int8": lambda: _add_and_subtract("INT8"),
        "simple_string": _simple_string,
        "simple_identity": lambda: _identity("STRING", ("N", "M")),
        "simple_identity_int64": lambda: _identity("INT64", ("N", "M")),
        "simple_sequence": _simple_sequence,
        "simple_dyna_sequence": _simple_dyna_sequence,
        "simple_string_dyna_sequence": _simple_string_dyna_sequence,
        "mock_llm": _mock_llm,
        "custom_identity_int32": lambda: _identity(
            "INT32", ("N", "M"), config=_BATCHED + _DELAYED
        ),
        "onnx_zero_1_float32": lambda: _identity("FLOAT", ("N", "M")),
        "onnx_zero_1_float16": lambda: _identity("FLOAT16", ("N", "A", "B")),
        "onnx_zero_3_float32": lambda: _identity("FLOAT", ("N", "M"), 3),
        "onnx_zero_1_object": lambda: _identity("STRING", ("N", "M")),
        "onnx_zero_1_object_1_element": lambda: _identity("STRING", ("N", 1)),
        # This model runs one request at a time and lets it wait up to a second for
        # others.
        "onnx_zero_1_float32_queue": lambda: _identity(
            "FLOAT",
            ("N", "M"),
            config=_BATCHED + "max_queue_delay = 1.0\nmax_queue_size = 1\n",
        ),
    }
)
