"""The compiler as the server and `popgate.ModelRunner` find it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from popgate_onnx.compile_cache import OnnxCompileCache


class OnnxCompiler:
    """Compiles ONNX files (`app.repository.compilers.Compiler`)."""

    def cache(
        self, folder: Path, seconds: float = 600.0, memory: int = 0
    ) -> OnnxCompileCache:
        """Return a cache in a folder, with limits on each compilation."""
        return OnnxCompileCache(folder, seconds, memory)

    def compile(self, source: Path, target: Path) -> None:
        """Compile an ONNX file in a process of its own."""
        # The imports take a tenth of a second. Compiled models do not need them.
        from popgate_onnx.compiler import CompileOptions, compile_in_process

        compile_in_process(source, target, CompileOptions(name=source.stem))


COMPILER: Final = OnnxCompiler()
