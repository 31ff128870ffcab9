"""The compiler from ONNX to PopEF: `compile_model`, and `compile_fused` for several
models.

The compiler needs the `onnx` package and imports it only when it compiles.

Runs in the process that compiles: the command line's process, or a separate one. May
import `engine` and `popef_io`.
"""

from engine.programs.onnx_session import give_back_memory
from popgate_onnx.compiler.compile import compile_fused, compile_model
from popgate_onnx.compiler.executable_rows import decide_rows
from popgate_onnx.compiler.graphs import label
from popgate_onnx.compiler.interface import GraphTensor, Interface
from popgate_onnx.compiler.options import (
    BatchDecision,
    CompileOptions,
    CompileReport,
    Progress,
    TensorReport,
)
from popgate_onnx.compiler.process import (
    Compilations,
    CompileLimits,
    compile_in_process,
    fuse_in_process,
)
from popgate_onnx.compiler.quantize import (
    OutputChange,
    QuantizeReport,
    compare_models,
    example_feeds,
    quantize,
)

__all__ = [
    "BatchDecision",
    "Compilations",
    "CompileLimits",
    "CompileOptions",
    "CompileReport",
    "GraphTensor",
    "Interface",
    "OutputChange",
    "Progress",
    "QuantizeReport",
    "TensorReport",
    "compare_models",
    "compile_fused",
    "compile_in_process",
    "compile_model",
    "decide_rows",
    "example_feeds",
    "fuse_in_process",
    "give_back_memory",
    "label",
    "quantize",
]
