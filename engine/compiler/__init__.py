"""The compiler from ONNX to PopEF: `compile_model`, and `compile_fused` for several
models.

The compiler needs the `onnx` package and imports it only when it compiles. The rest of
the engine does not need `onnx`.

Runs in the process that compiles: the command line's process, or a separate one. May
import `model`, `programs`, `transport` and the ground.
"""

from engine.compiler.compile import compile_fused, compile_model
from engine.compiler.executable_rows import decide_rows
from engine.compiler.options import (
    BatchDecision,
    CompileOptions,
    CompileReport,
    Progress,
    TensorReport,
)
from engine.compiler.process import (
    Compilations,
    CompileLimits,
    compile_in_process,
    fuse_in_process,
)
from engine.compiler.quantize import (
    OutputChange,
    QuantizeReport,
    compare_models,
    example_feeds,
    quantize,
)
from engine.programs.onnx_session import give_back_memory

__all__ = [
    "BatchDecision",
    "Compilations",
    "CompileLimits",
    "CompileOptions",
    "CompileReport",
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
    "quantize",
]
