"""Lengths of rows: those that the compiler shows, and why it shows none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model.ragged import OPTION_RAGGED, OPTION_RAGGED_REASON, ShownLengths
from popef_io import load_model
from popgate_onnx.compiler import CompileOptions, compile_model
from tests.engine.worker.test_ragged import PADS, network


def test_lengths_are_shown(tmp_path: Path) -> None:
    options = CompileOptions(ragged=PADS)
    path = compile_model(network(), tmp_path / "m.popef", options).target
    text = load_model(path).metadata.option(OPTION_RAGGED)
    assert text is not None
    shown = ShownLengths.from_text(text)
    assert shown == ShownLengths(PADS, {"mean": (), "tokens": (1,)})


@pytest.mark.parametrize(
    ("pads", "why", "masked"),
    [
        ({"nothing": 0.0}, "the model has no input 'nothing'", True),
        ({"ids": 0.0}, "input 'mask' has the same length but no padding", True),
        ({"ids": 0.0, "mask": 1.0}, "changes when it is padded", True),
        (PADS, "changes when it is padded", False),
    ],
)
def test_the_file_says_why_there_are_none(
    tmp_path: Path, pads: dict[str, float], why: str, masked: bool
) -> None:
    options = CompileOptions(ragged=pads)
    path = compile_model(network(masked=masked), tmp_path / "m.popef", options).target
    metadata = load_model(path).metadata
    assert not metadata.option(OPTION_RAGGED)
    assert why in str(metadata.option(OPTION_RAGGED_REASON))
