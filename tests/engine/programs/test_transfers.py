"""How often programs use their streams, and programs that the metadata do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import Device, InvalidModel, ModelRunner, ModelRunnerConfig
from engine.programs import executable as ex
from engine.programs.transfers import is_conditional, stream_transfers
from tests.engine import models


def executable(*programs: ex.Node) -> ex.Executable:
    return ex.Executable({}, {}, dict(enumerate(programs)))


def test_transfers_are_counted_through_all_nodes() -> None:
    read, write = ex.StreamIn("in", "a"), ex.StreamOut("a", "out")
    twice = ex.Repeat(2, ex.Steps((read, write)))
    choice = ex.Switch("a", {0: twice, 1: read}, ex.Steps((read, read, read)))
    main = ex.Steps((ex.ProgramCall(0), ex.Repeat(5, choice), ex.Repeat(0, write)))
    programs = executable(read, main, ex.ProgramCall(1))
    assert stream_transfers(programs, [1]) == {"in": 1 + 5 * 3, "out": 10}
    assert stream_transfers(programs, [0, 2]) == {"in": 17, "out": 10}
    assert stream_transfers(programs, [7]) == {}
    assert is_conditional(programs, [2])
    assert not is_conditional(programs, [0])


def test_programs_that_call_each_other_are_counted_once_and_bounded() -> None:
    pairs = [ex.Steps((ex.ProgramCall(n), ex.ProgramCall(n))) for n in range(60)]
    programs: list[ex.Node] = [ex.StreamIn("in", "a"), *pairs]
    with pytest.raises(InvalidModel, match="the limit is 1048576"):
        stream_transfers(executable(*programs), [60])


def test_iterations_have_to_be_announced(tmp_path: Path, shared_device: Device) -> None:
    path = models.regular(
        tmp_path / "m.popef", (3, 4), iterations=4, announced_iterations=1
    )
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with pytest.raises(InvalidModel, match="transfers 'input' 4 times; the device"):
        ModelRunner(path, config)
