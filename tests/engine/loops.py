"""Containers whose programs take long, made without the compiler."""

from __future__ import annotations

from pathlib import Path

from engine.programs import executable as ex
from popef_io import (
    Anchor,
    DataType,
    Metadata,
    ProgramFlow,
    TensorInfo,
    TensorType,
    Writer,
)

NOTHING = ex.Steps(())


def looping(path: Path, *, body: ex.Node = NOTHING, program: int = 1) -> Path:
    """A container whose load (0) or main (1) program takes 2^38 turns over `body`
    before it hands its input on."""
    info = TensorInfo((1, 4), DataType.F32)
    turns = ex.Repeat(1 << 30, ex.Repeat(1 << 8, body))
    copies: tuple[ex.Node, ...] = (
        ex.StreamIn("in", "x"),
        ex.Copy("x", "y"),
        ex.StreamOut("y", "out"),
    )
    programs: dict[int, ex.Node] = {
        0: turns if program == 0 else ex.Steps(()),
        1: ex.Steps((*copies[:2], turns, copies[2]) if program == 1 else copies),
    }
    return write(path, ex.Executable({}, {"x": info, "y": info}, programs))


def write(path: Path, executable: ex.Executable) -> Path:
    """A container of these programs: 0 loads, 1 takes `x` and gives `y`."""
    info = executable.variables["x"]
    metadata = Metadata(
        executable="m",
        anchors=(
            Anchor("x", "in", info, TensorType.INPUT, (1,)),
            Anchor("y", "out", info, TensorType.OUTPUT, (1,)),
        ),
        program_flow=ProgramFlow((0,), (1,), ()),
        programs_map={0: "load", 1: "main"},
    )
    with Writer(path) as writer:
        writer.write(metadata)
        with writer.create_executable("m") as blob:
            blob.write(executable.encode())
    return path
