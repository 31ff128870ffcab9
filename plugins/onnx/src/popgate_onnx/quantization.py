"""Quantising an ONNX file, or the file of a folder. It runs in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.repository.formats import format_named
from popgate_onnx.compiler import Progress

#: The quantised file beside the default file of a folder.
QUANTIZED = "model_quantized.onnx"


def quantize_file(source: str, target: str, progress: Progress) -> dict[str, Any]:
    """Write a quantised ONNX file; return the message of a `QuantizeReport`."""
    from popgate_onnx.compiler import compare_models, example_feeds, quantize

    progress("quantising", 0.0)
    quantize(Path(source), Path(target))
    progress("comparing", 0.6)
    before, after = _read(source), _read(target)
    return compare_models(before, after, example_feeds(before)).to_message()


def quantize_folder(
    format_name: str, files: Sequence[str], target: str, progress: Progress
) -> dict[str, Any]:
    """Write the quantised ONNX file of a folder, and compare the results of requests.

    Returns the message of a `QuantizeReport`.
    """
    from popgate_onnx.compiler import compare_models, quantize

    kind = format_named(format_name)
    paths, options = [Path(file) for file in files], kind.section()
    progress("quantising", 0.0)
    quantize(paths[0], Path(target))
    progress("comparing", 0.6)
    before, after = _read(files[0]), _read(target)
    recipe = kind.recipe(paths, options)
    for model in (before, after):
        kind.convert(model, recipe)
    examples: Any = getattr(kind, "examples", None)
    if examples is None:
        raise ValueError(f"the format {format_name} has no examples to compare with")
    names = [value.name for value in before.graph.input]
    found = compare_models(before, after, examples(paths, options, names))
    return found.to_message()


def _read(path: str) -> Any:
    import onnx

    return onnx.load(path)
