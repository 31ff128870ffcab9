"""The compiler from ONNX to PopEF: `compile_model`, and `compile_fused` for several
models.

Needs the `onnx` package, which is imported when something is compiled and not before;
the rest of the engine does without it.

Runs in the process that compiles: the command line's, or a separate one. May import
`model`, `programs`, `transport` and the ground.
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
