"""`popgate compile --quantize`: the file, and what is said of it.

Covers: plugins/onnx/src/popgate_onnx/quantization.py,
    plugins/onnx/src/popgate_onnx/compiler/quantize.py,
    plugins/text/src/popgate_text/examples.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from popef_io import load_model
from tests.app.cli.calls import Call

WIDTH = 256


def save(path: Path, outputs: int = 64) -> Path:
    """A linear layer of 256 inputs, whose weights are most of the file."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((WIDTH, outputs)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "graph",
        [value("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [value("y", TensorProto.FLOAT, ["rows", outputs])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1])


def test_an_onnx_file_is_quantised_and_compiled(popgate: Call, tmp_path: Path) -> None:
    source, plain = save(tmp_path / "m.onnx"), tmp_path / "plain.popef"
    target = tmp_path / "m.popef"
    done = popgate("compile", source, "--quantize", "int8", "-o", target)
    assert (done.code, done.err) == (0, "")
    assert f"m.onnx → {target}" in done.out
    assert number(r"int8: .* \((\d+)%\)", done.out) < 60
    assert number(r"a run: .* \(x([\d.]+) as fast", done.out) > 0
    cosine = number(r"y: cosine to the float model ([\d.]+) at least", done.out)
    assert 0.99 < cosine <= 1
    assert number(r"largest difference ([\d.e-]+), 8 examples", done.out) > 0
    # Without the option nothing is quantised.
    assert popgate("compile", source, "-o", plain).code == 0
    sizes = [sum(p.stat().st_size for p in [file]) for file in (target, plain)]
    assert sizes[0] < sizes[1]
    # The scale of activations is that of the whole batch, so rows are not mixed.
    assert load_model(target).metadata.option("popgate.batching") == "none"
    assert load_model(plain).metadata.option("popgate.batching") == "rows"


def test_an_output_without_vectors_has_a_difference_alone(
    popgate: Call, tmp_path: Path
) -> None:
    source = save(tmp_path / "m.onnx", outputs=1)
    done = popgate("compile", source, "--quantize", "int8")
    assert done.code == 0
    assert "cosine" not in done.out
    assert "y: largest difference" in done.out


def test_the_folder_of_a_text_model_gets_one_more_file(
    popgate: Call, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    from plugins.text.tests.folders import embedding_folder

    folder = embedding_folder(tmp_path / "unit")
    before = (folder / "onnx" / "model.onnx").read_bytes()
    done = popgate("compile", folder, "--quantize", "int8")
    assert (done.code, done.err) == (0, "")
    made = folder / "onnx" / "model_quantized.onnx"
    assert 0.9 < number(r"embedding: cosine to the float model ([\d.]+)", done.out) <= 1
    assert 'file = "onnx/model_quantized.onnx" in [text] of config.toml' in done.out
    assert (folder / "onnx" / "model.onnx").read_bytes() == before
    session: Any = onnxruntime.InferenceSession(made)
    assert {one.name for one in session.get_outputs()} == {"last_hidden_state"}
    # Only a model that names the file is served from it.
    seen = popgate("validate", tmp_path, "--cache-dir", tmp_path / "cache")
    assert "embedding of onnx/model.onnx" in " ".join(seen.out.split())
    assert "onnx/model_quantized.onnx" in seen.out
    again = popgate("compile", folder, "--quantize", "int8", "-o", made.with_name(
        "model.onnx"))  # fmt: skip
    assert again.code == 1
    assert "would be overwritten" in again.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("m.onnx", "--quantize", "int4"), "expected int8, got 'int4'"),
        (("m.onnx", "m.onnx", "--quantize", "int8", "--fuse", "x", "-o", "o"), "fuse"),
        ((".", "--quantize", "int8"), "contains no model"),
        ((".", "m.onnx", "--quantize", "int8"), "one folder at a time"),
        ((".", "--quantize", "int8", "--batch", "4"), "has no other options"),
        ((".", "--quantize", "int8", "--metadata", "a=b"), "has no other options"),
        (("none.onnx", "--quantize", "int8"), "No such file"),
        (("bad.onnx", "--quantize", "int8"), "not an ONNX model"),
    ],
)
def test_what_cannot_be_quantised_is_told(
    popgate: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    why: str,
) -> None:
    save(tmp_path / "m.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    monkeypatch.chdir(tmp_path)
    done = popgate("compile", *arguments)
    assert done.code in (1, 2)
    assert why in done.err
    assert "Traceback" not in done.err
