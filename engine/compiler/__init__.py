"""From ONNX to PopEF: `compile_model`, and `compile_fused` for several at once.

Needs the `onnx` package, which is imported when something is compiled and not before;
the rest of the engine does without it.
"""

from engine.compiler.compile import compile_fused, compile_model
from engine.compiler.options import (
    BatchDecision,
    CompileOptions,
    CompileReport,
    TensorReport,
)
from engine.onnx_session import give_back_memory

__all__ = [
    "BatchDecision",
    "CompileOptions",
    "CompileReport",
    "TensorReport",
    "compile_fused",
    "compile_model",
    "give_back_memory",
]
