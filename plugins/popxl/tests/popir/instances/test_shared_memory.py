"""Meetings of processes in shared memory.

Covers: plugins/popxl/src/popir/instances/shared_memory.py,
    plugins/popxl/src/popir/instances/futex.py.
"""

from __future__ import annotations

import os
import resource
from multiprocessing import get_context

import numpy as np
import pytest

from popir.errors import RunError
from popir.instances.shared_memory import InstanceMemory, create

ROUNDS = 300


def _meets(path: str, index: int, count: int) -> None:
    memory = InstanceMemory(path, index, count)
    others = [n for n in range(count) if n != index]
    views = [memory.view(n, 0, 8).view(np.int64) for n in range(count)]
    for number in range(ROUNDS):
        views[index][0] = number * count + index
        memory.write_note(f"{index} {number}".encode())
        memory.meet(others)
        assert [int(v[0]) for v in views] == [number * count + n for n in range(count)]
        assert memory.note(others[0]).startswith(f"{others[0]} {number}".encode())
        memory.meet(others)


@pytest.mark.parametrize("count", [2, 5])
def test_all_see_what_was_written_before_they_met(count: int) -> None:
    descriptor = create(count)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    context = get_context("fork")
    processes = [
        context.Process(target=_meets, args=(path, index, count))
        for index in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    os.close(descriptor)
    assert [p.exitcode for p in processes] == [0] * count


def test_waiting_takes_no_processor_time() -> None:
    descriptor = create(2)
    memory = InstanceMemory(f"/proc/{os.getpid()}/fd/{descriptor}", 0, 2)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # until the other has waited for a while
        memory.leave([1])
        os._exit(0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    # The wait ends after a second, if nothing comes; look then how often it woke.
    pid_of_timer = os.fork()
    if pid_of_timer == 0:
        os.close(reading)
        os.execvp("sh", ["sh", "-c", f"sleep 1.5; echo >&{writing}"])
    os.close(writing)
    with pytest.raises(RunError, match="instance 1 has ended"):
        memory.meet([1])
    after = resource.getrusage(resource.RUSAGE_SELF)
    switches = after.ru_nvcsw - before.ru_nvcsw
    for each in (pid, pid_of_timer):
        os.waitpid(each, 0)
    assert switches < 50
    memory.close()
    for each in (descriptor, reading):
        os.close(each)


def test_memory_that_is_not_there() -> None:
    with pytest.raises(RunError, match="cannot be opened"):
        InstanceMemory("/proc/self/fd/9999", 0, 2)
    with pytest.raises(RunError, match="from 1 to 256"):
        create(257)
