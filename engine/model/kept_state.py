"""Detection of models that keep state between requests."""

from __future__ import annotations

from engine.programs.dataflow import Dataflow
from engine.programs.executable import Executable
from engine.programs.program import walk, writes_of
from popef_io import Model


def keeps_state(model: Model) -> bool:
    """Return whether requests leave state in variables, which makes replicas differ.
    Reads the executable.
    """
    flow = model.metadata.program_flow
    if flow.save:
        return True
    executable = Executable.decode(model.executable.raw())
    persistent = Dataflow.of(executable, flow.load).persistent
    return any(
        variable in persistent
        for number, program in executable.programs.items()
        if number not in flow.load
        for node in walk(program)
        for variable in writes_of(node)
    )
