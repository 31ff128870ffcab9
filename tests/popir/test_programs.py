"""Random programs give what a plain interpreter gives, bit for bit.

Covers: popir/lowering/lower.py, popir/lowering/storage.py, popir/lowering/regions.py,
popir/lowering/assembly.py, popir/lowering/compile.py, popir/session.py, popir/ir.py,
popir/records.py, popir/errors.py.
"""

from __future__ import annotations

import os

import numpy as np
import popxl
import pytest

from tests.popir.oracle import Oracle
from tests.popir.programs import TRANSFERS, Program

#: More with POPIR_PROGRAMS=3000, as was done when the lowering was written.
COUNT = int(os.environ.get("POPIR_PROGRAMS", "160"))
GROUP = 40


def check(seed: int) -> None:
    program = Program(seed)
    oracle = Oracle(program.ir._pb_ir)
    session = popxl.Session(program.ir, "ipu_model")
    with session:
        for number in range(2):
            inputs = program.inputs(number)
            outputs = session.create_host_outputs()
            for array in outputs.values():
                array[...] = 0
            session.run_with_outputs(inputs, outputs)
            stored = oracle.run({s._tensor._pb_tensor: a for s, a in inputs.items()})
            for stream, array in outputs.items():
                expected = np.zeros_like(array)
                for at, value in enumerate(stored.get(stream._tensor._pb_tensor, [])):
                    expected[at % TRANSFERS] = value
                np.testing.assert_array_equal(array, expected, f"{seed} {stream}")
        for variable in program.variables:
            np.testing.assert_array_equal(
                session.get_tensor_data(variable),
                oracle.value(variable._pb_tensor),
                f"{seed} {variable}",
            )


@pytest.mark.parametrize("first", range(0, COUNT, GROUP))
def test_random_programs_give_what_the_interpreter_gives(first: int) -> None:
    for seed in range(first, first + GROUP):
        check(seed)
