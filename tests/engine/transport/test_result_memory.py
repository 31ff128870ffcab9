"""Large results: memory that is used again, and never while anybody can see it.

Covers: engine/transport/output_arrays.py.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import (
    Cancelled,
    Device,
    DeviceManager,
    ExecutionFailed,
    ModelRunner,
    ModelRunnerConfig,
)
from engine.transport.result_memory import (
    FORGOTTEN_AFTER,
    LEAST_BYTES,
    MOST_ALIKE,
    MOST_BYTES,
    RESULT_MEMORY,
    ResultMemory,
)
from tests.engine import models
from tests.engine.worker.test_memory_return import resident

MIB = 1 << 20
F32 = np.dtype(np.float32)
Floats = np.ndarray[Any, np.dtype[np.float32]]


def make(memory: ResultMemory, nbytes: int, value: float = 0.0) -> Floats:
    array = memory.array((nbytes // 4,), F32, nbytes)
    array[:] = value
    return array


def address(array: Floats) -> int:
    return int(array.ctypes.data)


def test_memory_that_nobody_holds_is_used_again() -> None:
    memory = ResultMemory()
    first = make(memory, MIB)
    where = address(first)
    second = make(memory, MIB)
    assert address(second) != where
    del first
    assert address(make(memory, MIB)) == where
    assert memory.nbytes == 2 * MIB


def buffer(array: Any) -> memoryview:
    """For types, an array is a buffer from Python 3.12 on only."""
    return memoryview(array)


HOLDERS: dict[str, Callable[[Floats], Any]] = {
    "array": lambda array: array,
    "view": lambda array: array[5:9],
    "another type": lambda array: array.view(np.uint8).reshape(-1, 8).T,
    "memoryview": lambda array: buffer(array)[3:],
    "array of a memoryview": lambda array: np.frombuffer(buffer(array), np.int32),
    "iterator": lambda array: array.flat,
    "base": lambda array: array.base,
    "part of the base": lambda array: buffer(array.base)[64:128],
    "pointer": lambda array: array.ctypes.data_as(
        np.ctypeslib.ctypes.POINTER(np.ctypeslib.ctypes.c_float)  # type: ignore[attr-defined]
    ),
    "function": lambda array: lambda: array.sum(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whoever_can_see_it_keeps_it(holder: str) -> None:
    memory = ResultMemory()
    array = make(memory, MIB)
    where = address(array)
    held = HOLDERS[holder](array)
    del array
    gc.collect()
    others = [make(memory, MIB, 1) for _ in range(3)]
    assert where not in map(address, others)
    del held
    gc.collect()
    assert address(make(memory, MIB)) == where


def test_small_results_are_not_kept() -> None:
    memory = ResultMemory()
    assert make(memory, LEAST_BYTES - 4).base is None
    assert memory.nbytes == 0


def test_what_is_kept_is_bounded() -> None:
    memory = ResultMemory(8 * MIB)
    held = [make(memory, MIB, number) for number in range(20)]
    assert memory.nbytes == 8 * MIB
    assert [array[-1] for array in held] == list(range(20))
    held += [make(memory, LEAST_BYTES) for _ in range(2 * MOST_ALIKE)]
    assert memory.nbytes == 8 * MIB
    del held
    # Room is made for another size, of what nobody holds.
    held = [make(memory, 4 * MIB, number) for number in range(2)]
    assert memory.nbytes == 8 * MIB
    assert make(memory, 9 * MIB).base is None
    assert memory.nbytes == 8 * MIB
    one_size = ResultMemory()
    held += [make(one_size, LEAST_BYTES) for _ in range(2 * MOST_ALIKE)]
    assert one_size.nbytes == MOST_ALIKE * LEAST_BYTES


def test_what_is_not_used_any_more_goes() -> None:
    memory = ResultMemory()
    kept_for_long = [make(memory, MIB, 7) for _ in range(8)]
    for _ in range(2 * FORGOTTEN_AFTER):
        make(memory, LEAST_BYTES)
    assert memory.nbytes == LEAST_BYTES
    make(memory, MIB, 8)
    assert all((array == 7).all() for array in kept_for_long)


def test_it_is_given_back_to_the_machine() -> None:
    memory = ResultMemory()
    before = resident()
    held = [make(memory, 4 * MIB, 3) for _ in range(16)]
    assert resident() > before + 60 * MIB
    memory.give_back()
    assert (held[5] == 3).all()  # somebody still looks
    del held
    assert resident() < before + 16 * MIB


def test_any_sizes_in_any_order() -> None:
    draw = random.Random(1)
    memory = ResultMemory(16 * MIB)
    held: list[tuple[int, Floats]] = []
    for number in range(2000):
        array = make(memory, 4 * draw.randrange(1, MIB // 2), number)
        held.append((number, array))
        draw.shuffle(held)
        del held[draw.randrange(1, 12) :]
        assert all(a[0] == a[-1] == n for n, a in held)
        assert memory.nbytes <= 16 * MIB
        if number % 500 == 499:
            memory.give_back()


def test_threads_never_get_the_same() -> None:
    memory = ResultMemory(4 * MIB)

    def work(seed: int) -> bool:
        draw = random.Random(seed)
        held: list[Floats] = []
        for _ in range(400):
            held.append(make(memory, draw.choice((LEAST_BYTES, 65536, MIB)), seed))
            if not all((array == seed).all() for array in held):
                return False
            del held[: draw.randrange(3)]
            del held[6:]
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_what_another_thread_drops_is_used_again() -> None:
    memory = ResultMemory()
    held = [make(memory, MIB)]
    where = address(held[0])
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(30)
    assert address(make(memory, MIB)) == where


def test_a_forked_child_has_its_own() -> None:
    memory = ResultMemory()
    array = make(memory, MIB, 1)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        # The parent has let go of its array, and something else is in that memory.
        fine = os.read(told, 1) == b"!" and bool((array == 1).all())
        array[:] = 2
        os._exit(0 if fine else 1)
    where = address(array)
    del array
    again = make(memory, MIB, 3)
    assert address(again) == where
    os.write(tell, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (again == 3).all()
    os.close(told)
    os.close(tell)


# -- of a runner


def doubled(path: Path) -> Path:
    """y = x * 2 on float32[n], n free."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        "doubled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.array(2, np.float32), "two")],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return models.write_graph(path, model)


def on(device: Device) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device})


def x(nbytes: int, value: float) -> dict[str, Floats]:
    return {"x": np.full(nbytes // 4, value, np.float32)}


def test_results_are_the_callers_own(tmp_path: Path, shared_device: Device) -> None:
    draw = random.Random(2)
    path = doubled(tmp_path / "m.popef")
    kept: list[tuple[int, Floats]] = []
    with ModelRunner(path, on(shared_device)) as runner:
        for number in range(60):
            sizes = [draw.choice((64, 40_000, 65_536, MIB)) for _ in range(4)]
            results = [runner.execute_async(x(size, number)) for size in sizes]
            for result in results:
                array = result["y"]
                assert array.flags.writeable
                assert (array == 2 * number).all()
                if draw.random() < 0.2:
                    array[:] = -number
                    kept.append((-number, array))
    assert RESULT_MEMORY.nbytes == 0
    gc.collect()
    assert all((array == value).all() for value, array in kept)


def test_results_in_flight_cost_no_page_faults(
    tmp_path: Path, shared_device: Device
) -> None:
    data = [x(4 * MIB, number) for number in range(8)]
    mine = [{"y": np.zeros(MIB, np.float32)} for _ in range(8)]

    def one_round(memory: list[dict[str, Floats]] | list[None]) -> None:
        pairs = zip(data, memory, strict=True)
        results = [runner.execute_async(one, into) for one, into in pairs]
        for number, result in enumerate(results):
            assert result["y"][0] == result["y"][-1] == 2 * number

    def faults(memory: list[dict[str, Floats]] | list[None]) -> int:
        counts = []
        for _ in range(6):  # until the rings have nothing left to touch
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(4):
                one_round(memory)
            after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            counts.append(after - before)
        return min(counts)

    with ModelRunner(doubled(tmp_path / "m.popef"), on(shared_device)) as runner:
        # Of 32 requests, each of which fills 1024 pages.
        assert faults(mine) < 1024
        assert faults([None] * 8) < 1024
        assert 0 < RESULT_MEMORY.nbytes <= MOST_BYTES


@pytest.mark.parametrize("adopted", [False, True])
def test_large_results_are_taken_before_more_is_sent(
    tmp_path: Path, adopted: bool
) -> None:
    with DeviceManager("cpu:38-38").get_device() as device:
        path = doubled(tmp_path / "m.popef")
        with ModelRunner(path, on(device)) as runner:
            assert runner.execute(x(MIB, 1))["y"][0] == 2
            if adopted:  # an event loop resolves requests, in its own thread
                device.adopt()
            first = runner.execute_async(x(MIB, 2))
            assert first.request is not None
            while not device.look(False):
                os.sched_yield()
            assert not first.request.done
            second = runner.execute_async(x(MIB, 3))
            assert first.request.done is not adopted
            assert second.request is not None
            while not second.request.done:
                device.poll()
            assert (first["y"] == 4).all()
            assert (second["y"] == 6).all()


def test_what_was_given_up_is_not_written_to(
    tmp_path: Path, shared_device: Device
) -> None:
    memory = {"y": np.zeros(16, np.float32)}
    with ModelRunner(doubled(tmp_path / "m.popef"), on(shared_device)) as runner:
        result = runner.execute_async(x(64, 1), memory)
        assert result.request is not None
        result.request.cancel()
        assert runner.execute(x(64, 2))["y"][0] == 4
        assert not memory["y"].any()
        with pytest.raises(Cancelled):
            result.wait()


class NoMemory(dict[str, Any]):
    """Memory for outputs that is there when asked, and gone when it is needed."""

    asked = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.asked += 1
        if self.asked > 1:
            raise MemoryError
        return super().get(name, default)


def test_a_result_for_which_there_is_no_memory(
    tmp_path: Path, shared_device: Device
) -> None:
    with ModelRunner(doubled(tmp_path / "m.popef"), on(shared_device)) as runner:
        results = [
            runner.execute_async(x(64, 1)),
            runner.execute_async(x(64, 2), NoMemory(y=np.zeros(16, np.float32))),
            runner.execute_async(x(64, 3)),
        ]
        assert results[0]["y"][0] == 2
        with pytest.raises(
            ExecutionFailed, match="not enough memory to copy output 'y'"
        ):
            results[1].wait()
        assert results[2]["y"][0] == 6
        assert runner.in_flight == 0
