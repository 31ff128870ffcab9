"""`popgate compile program.py`: the Ir of a program, and what programs do wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import ModelRunner, ModelRunnerConfig
from popef_io import load_model
from tests.app.cli.calls import Call

PROGRAM = """
import popxl
from popxl import ops
import helper

print("building")
ir = popxl.Ir()
with ir.main_graph:
    x = ops.host_load(popxl.h2d_stream((4, 2), popxl.float32, "x"))
    ops.host_store(popxl.d2h_stream((4, 2), popxl.float32, "y"), x * helper.FACTOR)


def made():
    return ir


if __name__ == "__main__":
    raise SystemExit("this trains for hours")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("FACTOR = 2.0\n")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("name", ["", ":ir", ":made"])
def test_the_ir_of_a_program(popgate: Call, program: Path, name: str) -> None:
    target = program.parent / "out.popef"
    done = popgate(
        "compile",
        f"{program}{name}",
        "-o",
        target,
        "--metadata",
        "by=me",
        "--name",
        "n",
    )
    assert (done.code, done.err) == (0, "")
    assert "takes x FP32[4,2]" in done.out
    assert "batching: on" in done.out
    metadata = load_model(target).metadata
    assert (metadata.executable, metadata.option("user.by")) == ("n", "me")


REPLICAS = """
import popxl
from popxl import ops
from popxl.ops import collectives


def made(in_branch):
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        x = ops.host_load(popxl.h2d_stream((3,), popxl.float32, "x"))
        y = popxl.d2h_stream((3,), popxl.float32, "y")
        if in_branch:
            graph = ir.create_graph(collectives.replicated_all_reduce, x)
            test = ops.host_load(popxl.h2d_stream((), popxl.bool, "test"))
            (total,) = ops.conditional(test, graph, graph, [x], [x])
        else:
            total = collectives.replicated_all_reduce(x)
        ops.host_store(y, total)
    return ir


def plain():
    return made(False)


def branch():
    return made(True)
"""


def test_a_program_of_replicas(popgate: Call, tmp_path: Path) -> None:
    path = tmp_path / "replicas.py"
    path.write_text(REPLICAS)
    done = popgate("compile", f"{path}:plain")
    assert (done.code, done.err) == (0, "")
    assert "takes x FP32[2,3]" in done.out
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ModelRunner(path.with_suffix(".popef"), ModelRunnerConfig()) as runner:
        assert runner.execute({"x": given})["y"].tolist() == [[3, 5, 7]] * 2
    done = popgate("compile", f"{path}:branch")
    assert done.code != 0
    assert "in a branch that each replica takes by itself" in done.err


def test_beside_the_program_by_default(popgate: Call, program: Path) -> None:
    assert popgate("compile", f"{program}:ir").code == 0
    assert program.with_suffix(".popef").is_file()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        (":nothing", (), "the program has no name 'nothing'"),
        (":popxl", (), "'popxl' is a module; expected an Ir"),
        ("", ("--batch", "4"), "only with --batch auto or off"),
        ("", ("--rename-input", "x=z"), "do not apply to a program"),
        ("", ("--fuse", "which"), "--fuse joins ONNX models"),
    ],
)
def test_what_cannot_be_is_said(
    popgate: Call, program: Path, name: str, options: tuple[str, ...], says: str
) -> None:
    done = popgate("compile", f"{program}{name}", *options)
    assert done.code != 0
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("x = (\n", "line 1: SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)\n", "the program called sys.exit(3)"),
        ("import popxl\na, b = popxl.Ir(), popxl.Ir()\n", "NAME; it has several: a, b"),
        ("x = 1\n", "NAME; it has none"),
        ("import popxl\nir = popxl.Ir()\n", "the Ir has no graphs"),
    ],
)
def test_a_program_that_fails(
    popgate: Call, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "p.py").write_text(text)
    done = popgate("compile", tmp_path / "p.py")
    assert done.code != 0
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_program_that_is_not_there(popgate: Call, tmp_path: Path) -> None:
    assert "does not exist" in popgate("compile", tmp_path / "p.py").err
