"""`popgate compile --quantize`: writes 8-bit weights, and prints what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from app.cli.errors import CommandError
from app.repository.formats import recognise
from popgate_onnx.quantization import QUANTIZED, quantize_file, quantize_folder

if TYPE_CHECKING:
    from popgate_onnx.compiler import (
        Compilations,
        OutputChange,
        Progress,
        QuantizeReport,
    )


def quantize(
    source: Path, target: Path, compilations: Compilations, progress: Progress
) -> QuantizeReport:
    """Write the quantised form of an ONNX file to `target`."""
    from popgate_onnx.compiler import QuantizeReport

    message = compilations.run(
        quantize_file, str(source), str(target), progress=progress
    )
    return QuantizeReport.from_message(message)


def quantize_in(
    folder: Path, output: Path | None, compilations: Compilations, progress: Progress
) -> tuple[Path, Path, QuantizeReport]:
    """Write the quantised file of a text model's folder. Return the source file, the
    new file, and the report.
    """
    from popgate_onnx.compiler import QuantizeReport

    kind, files = recognise(folder, {})
    if not kind:
        msg = f"{folder} contains no model; expected an ONNX file, or a folder"
        raise CommandError(f"{msg} with tokenizer.json beside model.onnx")
    target = output or files[0].with_name(QUANTIZED)
    if target.exists() and target.samefile(files[0]):
        raise CommandError(
            f"{target} is the model itself, which would be overwritten; choose "
            "another --output"
        )
    found = compilations.run(
        quantize_folder, kind, [str(file) for file in files], str(target),
        progress=progress,
    )  # fmt: skip
    return files[0], target, QuantizeReport.from_message(found)


def tell_quantized(report: QuantizeReport) -> None:
    """Print what quantising has changed."""
    from app.sizes import size_text

    part = report.bytes_after / max(1, report.bytes_before)
    sizes = f"{size_text(report.bytes_before)} → {size_text(report.bytes_after)}"
    typer.echo(f"  int8: {sizes} ({part:.0%})")
    before, after = 1e3 * report.seconds_before, 1e3 * report.seconds_after
    times = f"{before:.3g} ms → {after:.3g} ms on one thread of this machine"
    typer.echo(f"  a run: {times} (x{before / max(after, 1e-6):.2f} as fast)")
    for change in report.changes:
        typer.echo(f"  {change.name}: {_moved(change)}, {report.examples} examples")


def _moved(change: OutputChange) -> str:
    largest = f"largest difference {change.largest:.3g}"
    if change.cosine is None:
        return largest
    cosines = f"{change.cosine:.4f} at least, {change.mean_cosine:.4f} on average"
    return f"cosine to the float model {cosines}, {largest}"
