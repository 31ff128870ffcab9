"""The compiler under the names that programs import. The plugin `popgate_onnx` contains
it.

Type checkers would not know the names of an entry point.
"""

from __future__ import annotations

from popgate_onnx.compiler import CompileOptions as CompileOptions
from popgate_onnx.compiler import CompileReport as CompileReport
from popgate_onnx.compiler import compile_model as compile_model
