"""`popgate compile`: one model, many, and what cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from popef_io import load_model
from tests.app.cli.calls import Call


def save(path: Path, operator: str = "Relu", rows: str | int = "rows") -> Path:
    """An ONNX file of one operator and one weight."""
    weight = numpy_helper.from_array(np.ones((3, 3), np.float32), "weight")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["product"]),
            helper.make_node(operator, ["product"], ["y"]),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 3])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def names(anchors: Any) -> list[str]:
    return [anchor.name for anchor in anchors if anchor.programs == (1,)]


def test_one_model(popgate: Call, tmp_path: Path) -> None:
    target = tmp_path / "out.popef"
    done = popgate("compile", save(tmp_path / "m.onnx"), "-o", target)
    assert (done.code, done.err) == (0, "")
    assert f"m.onnx → {target}" in done.out
    assert "takes x FP32[-1,3]" in done.out
    assert "batching: on, rows give the same answers alone and in a batch" in done.out
    metadata = load_model(target).metadata
    assert names(metadata.anchors) == ["x", "y"]
    assert metadata.option("popgate.batching") == "rows"


def test_names_of_a_file_command_no_terminal(popgate: Call, tmp_path: Path) -> None:
    model = onnx.load(save(tmp_path / "m.onnx"))
    model.graph.input[0].name = model.graph.node[0].input[0] = "x\x1b[31m\u202e"
    model.graph.output[0].name = model.graph.node[1].output[0] = "y\r\nX: z"
    onnx.save(model, tmp_path / "m.onnx")
    shown = popgate("validate", tmp_path).out
    assert r"x\x1b[31m\u202e FP32" in shown
    for command in ("compile", "run"):
        done = popgate(command, tmp_path / "m.onnx")
        assert done.code == 0, done.err
        shown = done.out + done.err
        assert all(line.isprintable() for line in shown.split("\n")), shown
        assert r"y\r\nX: z" in shown


def test_folders_are_made_for_out_dir_alone(popgate: Call, tmp_path: Path) -> None:
    model, missing = save(tmp_path / "m.onnx"), tmp_path / "typo"
    done = popgate("compile", model, "-o", missing / "out.popef")
    assert done.code == 2
    assert f"the folder {missing} for out.popef does not exist" in done.err
    assert not missing.exists()
    assert popgate("compile", model, "--out-dir", tmp_path / "a" / "b").code == 0
    assert (tmp_path / "a" / "b" / "m.popef").is_file()


def test_beside_the_model_by_default(popgate: Call, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx")
    assert popgate("compile", tmp_path / "m.onnx").code == 0
    assert (tmp_path / "m.popef").is_file()


def test_options(popgate: Call, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx")
    target = tmp_path / "m.popef"
    done = popgate(
        "compile", tmp_path / "m.onnx", "-o", target, "--batch", "off",
        "--weights", "data", "--weights-from", "1", "--name", "special",
        "--rename-input", "x=image", "--rename-output", "y=result",
        "--shape", "x=2,3", "--metadata", "author=me", "--description", "A test.",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    model = load_model(target)
    assert model.metadata.executable == "special"
    assert names(model.metadata.anchors) == ["image", "result"]
    assert model.metadata.option("popgate.batching") == "none"
    assert model.metadata.option("user.author") == "me"
    assert list(model.tensors) == ["weight"]
    inside = tmp_path / "inside.popef"
    popgate(
        "compile", tmp_path / "m.onnx", "-o", inside, "--weights", "inside",
        "--batch", "4",
    )  # fmt: skip
    assert list(load_model(inside).tensors) == []
    assert load_model(inside).metadata.option("popgate.batch_size") == "4"


def test_many_models_go_on_past_a_failure(popgate: Call, tmp_path: Path) -> None:
    good = [save(tmp_path / f"good{i}.onnx") for i in range(3)]
    bad = save(tmp_path / "bad.onnx", operator="NoSuchOperator")
    out = tmp_path / "out"
    done = popgate("compile", bad, *good, "--out-dir", out)
    assert done.code == 1
    assert sorted(p.name for p in out.iterdir()) == [
        "good0.popef", "good1.popef", "good2.popef",
    ]  # fmt: skip
    assert "bad.onnx" in done.err
    assert "NoSuchOperator" in done.err
    assert "3 compiled, 1 failed" in done.out
    assert "good1.onnx" in done.out


def test_limits_that_no_model_reaches(popgate: Call, tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx")
    limits = ("--timeout", "1e6", "--memory", "99999999999G")
    done = popgate("compile", model, *limits)
    assert (done.code, done.err) == (0, "")


def test_fused_models(popgate: Call, tmp_path: Path) -> None:
    first, second = save(tmp_path / "a.onnx"), save(tmp_path / "b.onnx")
    target = tmp_path / "both.popef"
    done = popgate("compile", first, second, "--fuse", "which", "-o", target)
    assert (done.code, done.err) == (0, "")
    anchors = names(load_model(target).metadata.anchors)
    assert "which" in anchors
    assert {"a/x", "b/x", "a/y", "b/y"} <= set(anchors)
    done = popgate("compile", first, second, "--fuse", "which")
    assert done.code == 2
    assert "--output" in done.err


def test_nothing_overwrites_another(popgate: Call, tmp_path: Path) -> None:
    first, second = save(tmp_path / "a" / "m.onnx"), save(tmp_path / "b" / "m.onnx")
    done = popgate("compile", first, second, "--out-dir", tmp_path / "out")
    assert done.code == 2
    assert f"{first} and {second} would both be written" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "Missing argument"),
        (["none.onnx"], 1, "none.onnx"),
        (["a.onnx", "b.onnx", "-o", "c.popef"], 2, "--output names one file"),
        (["a.onnx", "-o", "c.popef", "--out-dir", "d"], 2, "exclude each other"),
        (
            ["a.onnx", "-o", "c.popef", "--out-dir", "d", "--fuse", "x"],
            2,
            "--fuse writes one file",
        ),
        (["a.onnx", "--timeout", "inf"], 2, "--timeout"),
        (["a.onnx", "-o", "/dev/null"], 2, "/dev/null is not a regular file; name"),
        (["a.onnx", "-o", "/dev/stdout"], 2, "/dev/stdout is not a regular file;"),
        (["a.onnx", "--timeout", "3e6"], 2, "--timeout"),
        (["a.onnx", "--batch", "some"], 2, "batch must be auto, off or a number"),
        (["a.onnx", "--batch", "9" * 5000], 2, "batch must be auto, off or a number"),
        (["a.onnx", "--batch", "0"], 2, "batch must be auto, off or a number"),
        (["a.onnx", "--threads", "100000"], 2, "threads must be from 1 to 1024"),
        (["a.onnx", "--weights", "outside"], 2, "weights must be data or inside"),
        (["a.onnx", "--weights-from", "big"], 2, "'big' is not a size"),
        (["a.onnx", "--timeout", "inf"], 2, "Invalid value for '--timeout'"),
        (["a.onnx", "--rename-input", "x"], 2, "--rename-input x: expected NAME="),
        (["a.onnx", "--metadata", "k=1", "--metadata", "k=2"], 2, "k is given twice"),
    ],
)
def test_what_cannot_be(
    popgate: Call, arguments: list[str], code: int, text: str
) -> None:
    done = popgate("compile", *arguments)
    assert done.code == code
    assert text in done.err


def test_a_file_that_is_no_model(popgate: Call, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model")
    done = popgate("compile", path)
    assert done.code == 1
    assert f"popgate: error: {path}: " in done.err
    assert not (tmp_path / "m.popef").exists()


def test_the_model_is_not_overwritten(popgate: Call, tmp_path: Path) -> None:
    first, second = save(tmp_path / "a.onnx"), save(tmp_path / "b.onnx")
    before = second.read_bytes()
    for models in ([second], [first, second, "--fuse", "which"]):
        done = popgate("compile", *models, "-o", second)
        assert done.code == 1
        assert f"{second} is the model itself, which would be overwritten" in done.err
    assert second.read_bytes() == before


def test_what_is_no_file_is_not_waited_for(popgate: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("pipe.onnx", "folder.onnx"):
        done = popgate("compile", tmp_path / name)
        assert done.code == 1
        assert f"{name}: not an ONNX model: expected a regular file" in done.err


def test_a_name_that_is_no_text(popgate: Call, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"m\xff.onnx")
    save(tmp_path / "m.onnx").rename(odd)
    target = tmp_path / "m.popef"
    assert popgate("compile", odd, "-o", target).code == 0
    assert load_model(target).metadata.executable == "m\ufffd"


def test_a_full_disk_is_told_of(popgate: Call, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx")
    program = "from app.cli import main; main()"
    command = [sys.executable, "-c", program, "compile", str(tmp_path / "m.onnx")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "popgate: error: [Errno 28] No space left on device\n"
