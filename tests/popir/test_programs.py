"""Random programs give what a plain interpreter gives, bit for bit.

Covers: popir/lowering/lower.py, popir/lowering/storage.py, popir/lowering/regions.py,
popir/lowering/assembly.py, popir/lowering/compile.py, popir/session.py, popir/ir.py,
popir/records.py, popir/errors.py.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import popxl
import pytest

from tests.popir.oracle import Oracle
from tests.popir.programs import TRANSFERS, Program

#: More with POPIR_PROGRAMS=3000, as was done when the lowering was written.
COUNT = int(os.environ.get("POPIR_PROGRAMS", "160"))
GROUP = 40


def check(seed: int, device: Any = "ipu_model") -> None:
    """Run a random program on a device, and compare all it does with the oracle."""
    program = Program(seed)
    oracle = Oracle(program.ir._below)
    session = popxl.Session(program.ir, device)
    with session:
        for number in range(2):
            inputs = program.inputs(number)
            outputs = session.create_host_outputs()
            for array in outputs.values():
                array[...] = 0
            session.run_with_outputs(inputs, outputs)
            stored = oracle.run({s._tensor._below: a for s, a in inputs.items()})
            for stream, array in outputs.items():
                expected = np.zeros_like(array)
                for at, value in enumerate(stored.get(stream._tensor._below, [])):
                    expected[at % TRANSFERS] = value
                np.testing.assert_array_equal(array, expected, f"{seed} {stream}")
        for variable in program.variables:
            np.testing.assert_array_equal(
                session.get_tensor_data(variable),
                oracle.value(variable._below),
                f"{seed} {variable}",
            )
    session._session.detach()


@pytest.mark.parametrize("first", range(0, COUNT, GROUP))
def test_random_programs_give_what_the_interpreter_gives(first: int) -> None:
    for seed in range(first, first + GROUP):
        check(seed)
