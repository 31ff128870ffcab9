"""Random programs give what a plain interpreter gives, bit for bit.

Covers: plugins/popxl/src/popir/lowering/lower.py,
    plugins/popxl/src/popir/lowering/storage.py,
    plugins/popxl/src/popir/lowering/regions.py,
    plugins/popxl/src/popir/lowering/assembly.py,
    plugins/popxl/src/popir/lowering/compile.py, plugins/popxl/src/popir/session.py,
    plugins/popxl/src/popir/ir.py, plugins/popxl/src/popir/records.py,
    plugins/popxl/src/popir/errors.py.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import popxl
from plugins.popxl.tests.popir import replica_programs
from plugins.popxl.tests.popir.oracle import Oracle
from plugins.popxl.tests.popir.programs import TRANSFERS, Program
from popxl import ops

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


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs_on_replicas(first: int) -> None:
    for seed in range(first, first + 10):
        replica_programs.check(seed)


def test_what_runs_as_weights_come_and_go_keeps_what_it_computed() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        v = popxl.variable(np.ones(2, np.float32), name="v")
        count = popxl.variable(0.0, name="count")
        out = popxl.d2h_stream((2,), popxl.float32)
        fragment: Any = popxl.context._execution_context
        with fragment(popxl.ExecutionContext.WeightsFromHostFragment):
            before = ops.identity(v)
            ops.add_(v, popxl.constant(1.0))
            twice = v * 2
        ops.host_store(out, before + twice * 10)
        ops.add_(v, popxl.constant(100.0))
        with fragment(popxl.ExecutionContext.WeightsToHostFragment):
            ops.add_(count, popxl.constant(1.0))
    with popxl.Session(ir) as session:
        assert session.run()[out].tolist() == [41, 41]
        assert session.run()[out].tolist() == [41, 41]
        assert session.get_tensor_data(v).tolist() == [202, 202]
        assert session.get_tensor_data(count) == 1
    assert session.get_tensor_data(count) == 1, "nothing had changed since"


def test_runs_of_several_threads_follow_one_another() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        count = popxl.variable(np.zeros(1 << 12, np.float32))
        ops.add_(count, popxl.constant(np.ones(1 << 12, np.float32)))
        out = popxl.d2h_stream((1 << 12,), popxl.float32)
        ops.host_store(out, count)
    with popxl.Session(ir, "ipu_model") as session, ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(session.run) for _ in range(300)]
        seen = [int(run.result()[out][0]) for run in runs]
        assert sorted(seen) == list(range(1, 301))
        assert session.get_tensor_data(count)[0] == 300
