"""Children made by `os.fork`: they use nothing of their parent's, and keep nothing.

Covers: engine/fork_guard.py, engine/transport/held_socket.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from engine.devices.device_lock import try_claim
from tests.engine import models
from tests.support import is_gone, until
from tests.warm import forked

ROOT = Path(__file__).parents[4]

WARNINGS = """
import warnings
warnings.simplefilter("error", ResourceWarning)
warnings.simplefilter("ignore", DeprecationWarning)
"""
PRELUDE = """
import gc, os, signal, sys, threading
import numpy as np
from engine import *
from engine.transport import control
from engine.transport.device_messages import Done, Stop
from tests.engine.forks import *
path = sys.argv[1]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.affine(tmp_path_factory.mktemp("fork") / "m.popef", batch_size=2)


def command(script: str, model: Path) -> list[str]:
    file = model.with_name("script.py")
    file.write_text(PRELUDE + textwrap.dedent(script))
    # What is left open is told of; that threads and forks do not go well together
    # is what is tested here.
    return forked(file, model, before=WARNINGS)


def run(script: str, model: Path) -> str:
    """What the script prints; it must end well and complain of nothing."""
    ended = subprocess.run(
        command(script, model),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert not ended.stderr, ended.stderr
    assert ended.returncode == 0
    return ended.stdout


def test_what_a_parent_made_is_refused_in_its_child(model: Path) -> None:
    script = """
    config = ModelRunnerConfig(batching_dim=0, timeout_ns=0, record_tracepoints=True)
    device = DeviceManager("cpu:2").get_device()
    other = DeviceManager("cpu:2").get_device()
    runner = ModelRunner(path, config, manager=DeviceManager("cpu:3"))
    done = runner.execute_async(given(1, rows=2))
    assert answer(done) == 3
    waiting = runner.execute_async(given(5))
    points = runner.tracepoints()
    session = Session(path)
    session.bind_to_device(other)
    queues = session.create_queue_manager()
    source, sink = queues.inputs["input"], queues.outputs["output"]
    ring = SpscRingBuffer(1, "mine", make=list)
    ring.write([1])
    process = device.pid

    def child():
        made = "this ModelRunner was made"
        refused(lambda: runner.execute(given(777)), made)
        refused(lambda: runner.execute_async(given(777)), made)
        tensors = {"input": Tensor.from_numpy(given(7, rows=2)["input"])}
        refused(lambda: runner.submit(tensors), made)
        refused(lambda: runner.run_save_programs(), made)
        refused(lambda: runner.tracepoints(), made)
        refused(lambda: runner.drain(1), made)
        refused(lambda: points.mean())
        refused(lambda: points.count)
        assert not runner.ready and not runner.serving
        assert f"of process {os.getppid()}" in repr(runner) + repr(points)
        refused(lambda: waiting.wait(), "this request was made")
        refused(lambda: waiting["output"])
        refused(waiting.request.cancel)
        assert answer(done) == 3  # its arrays are memory like any other
        for call in (device.poll, device.check, device.expire, device.ping):
            refused(call, "this Device was made")
        refused(lambda: device.kill("no"))
        refused(lambda: device.recover())
        refused(lambda: device.call(Stop(), Done))
        config = ModelRunnerConfig(replica_to_device={0: device})
        refused(lambda: ModelRunner(path, config), "this Device was made")
        refused(lambda: Session(path).bind_to_device(device), "this Device was made")
        for call in (
            session.run_load_programs,
            session.run_main_programs,
            session.run_save_programs,
            lambda: session.run_programs([0]),
            lambda: session.bind_to_device(device),
            session.unload_from_device,
            session.create_queue_manager,
            lambda: session.set_callback_for_anchor("input", print),
            lambda: session.set_user_input_handler(print),
            lambda: session.set_user_output_handler(print),
            session.stop,
            session.reload,
        ):
            refused(call, "this Session was made")
        refused(lambda: source.enqueue(bytes(32)), "this input queue 'input' was made")
        refused(lambda: sink.enqueue(bytearray(32)), "this output queue 'output'")
        for call in (source.flush, source.disconnect, sink.reset, queues.flush_all,
                     queues.disconnect_all, queues.reset_all):
            refused(call)
        for call in (ring.read_lock, ring.try_read_lock, ring.write_lock,
                     ring.try_write_lock, lambda: ring.write([2]), ring.write_complete,
                     ring.read_complete, ring.read_reset, ring.invalidate, ring.reset):
            refused(call, "this mine SpscRingBuffer was made")
        for thing in (device, session, queues, source, sink, ring, done, waiting):
            repr(thing)
        for owner in (runner, session, device, other):
            owner.close()
            owner.close()

    assert status_of(fork(child)) == 0
    assert answer(runner.execute(given(10, rows=1))) == 21  # and one that waits
    assert answer(waiting) == 11
    assert runner.tracepoints().count == 3
    assert device.pid == process and device.ping()
    source.enqueue(given(3, rows=2)["input"])
    result = np.zeros((2, 4), np.float32)
    sink.enqueue(result)
    assert session.run_main_programs()
    assert answer({"output": result}) == 7
    assert ring.read_lock() == [1]
    for owner in (runner, session, device, other):
        owner.close()
    print("well")
    """
    assert run(script, model) == "well\n"


@pytest.mark.parametrize("end", ["drop", "close", "leave", "exit", "cut", "execute"])
def test_a_child_may_end_as_it_likes(model: Path, end: str) -> None:
    """The parent executes all the while, and every answer is its own."""
    script = """
    runner = ModelRunner(path, ModelRunnerConfig(batching_dim=0))
    [device] = runner.devices
    process = device.pid

    def drop():
        global runner, device
        del runner, device
        gc.collect()

    def close():
        runner.close()

    def leave():
        with runner:
            pass

    def exit():
        sys.exit(0)

    def cut():
        os._exit(0)

    def execute():
        for number in range(200):
            refused(lambda: runner.execute(given(777, rows=2)))

    for turn in range(3):
        pid = os.fork()
        if pid == 0:
            signal.alarm(LONGEST)
            END()
            sys.exit(0)  # finalizers and all
        ended = number = 0
        while not ended:
            ended, status = os.waitpid(pid, os.WNOHANG)
            assert answer(runner.execute(given(number, rows=2))) == number * 2 + 1
            number += 1
        assert status == 0, status
        assert answer(runner.execute(given(10, rows=2))) == 21
    assert device.pid == process and device.restarts == 0
    runner.close()
    print("well")
    """
    assert run(script.replace("END()", f"{end}()"), model) == "well\n"


def test_a_session_outlives_a_child_that_ends(model: Path) -> None:
    script = """
    device = DeviceManager("cpu:1").get_device()
    session = Session(path)
    session.bind_to_device(device)
    queues = session.create_queue_manager()
    source, sink = queues.inputs["input"], queues.outputs["output"]

    def end():
        global session, device, queues, source, sink
        session.close()
        device.close()
        del session, device, queues, source, sink
        gc.collect()

    for number in range(3):
        source.enqueue(given(number, rows=2)["input"])
        result = np.zeros((2, 4), np.float32)
        sink.enqueue(result)
        assert status_of(fork(end)) == 0
        assert session.run_main_programs()
        assert answer({"output": result}) == 2 * number + 1
    session.close()
    device.close()
    print("well")
    """
    assert run(script, model) == "well\n"


def test_children_make_their_own(model: Path) -> None:
    """Beside their parent's, which they have a copy of, and while it is at work."""
    script = """
    runner = ModelRunner(path, manager=DeviceManager("cpu:3"))

    def child():
        refused(lambda: runner.execute(given(777, rows=2)))
        with ModelRunner(path, manager=DeviceManager("cpu:3")) as mine:
            for number in range(50):
                assert answer(mine.execute(given(number, rows=2))) == number * 2 + 1
            def grandchild():
                refused(lambda: mine.execute(given(777, rows=2)))
            assert status_of(fork(grandchild)) == 0
            assert answer(mine.execute(given(1, rows=2))) == 3

    children = [fork(child), fork(child)]
    for number in range(200):
        assert answer(runner.execute(given(number, rows=2))) == number * 2 + 1
    assert [status_of(pid) for pid in children] == [0, 0]
    runner.close()
    print("well")
    """
    assert run(script, model) == "well\n"


def test_locks_of_the_parents_threads_hold_up_no_child(model: Path) -> None:
    """A thread has the lock of the device, of a ring, of the turn and of the fence."""
    script = """
    from engine.transport import ring_buffer
    from popgate_sessions.session_lease import lease_of
    runner = ModelRunner(path, ModelRunnerConfig(batching_dim=0, timeout_ns=0))
    [device] = runner.devices
    session = Session(path)
    session.bind_to_device(device)
    ring = SpscRingBuffer(1, make=list)
    waiting = runner.execute_async(given(5))
    inside, go = threading.Event(), threading.Event()

    def keep_all():
        with device.lock, lease_of(device).hold(), ring_buffer._lock:
            inside.set()
            go.wait()

    def wait_for_the_ring():
        ring.read_lock()

    def wait_for_a_request():
        assert answer(runner.execute(given(4))) == 9

    def child():
        for call in (
            lambda: runner.execute(given(777, rows=2)),
            waiting.wait,
            waiting.request.cancel,
            runner.tracepoints,
            session.run_main_programs,
            session.unload_from_device,
            lambda: Session(path).bind_to_device(device),
            ring.read_lock,
            ring.invalidate,
            device.poll,
            device.expire,
            device.recover,
        ):
            refused(call)
        ring_buffer.full_fence()  # what every process shares is free
        runner.close()
        session.close()
        device.close()

    threads = [threading.Thread(target=work, daemon=True)
               for work in (wait_for_the_ring, keep_all, wait_for_a_request)]
    threads[0].start()
    threads[1].start()
    assert inside.wait(60)
    threads[2].start()  # only now: its polling would end what waits
    assert status_of(fork(child)) == 0
    go.set()
    ring.write([1])
    for thread in threads:
        thread.join()
    assert answer(waiting) == 11
    session.close()
    runner.close()
    print("well")
    """
    assert run(script, model) == "well\n"


def test_forks_beside_threads_that_execute(model: Path) -> None:
    script = """
    runner = ModelRunner(path, ModelRunnerConfig(batching_dim=0, timeout_ns=1000))
    over = threading.Event()
    counts = [0] * 4

    def work(first):
        while not over.is_set():
            number = first + counts[first]
            assert answer(runner.execute(given(number))) == number * 2 + 1
            counts[first] += 1

    def child():
        refused(lambda: runner.execute(given(777)))
        runner.close()
        gc.collect()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(counts))]
    for thread in threads:
        thread.start()
    for turn in range(40):
        assert status_of(fork(child)) == 0
    over.set()
    for thread in threads:
        thread.join()
    assert all(counts)
    runner.close()
    print("well")
    """
    assert run(script, model) == "well\n"


# -- devices are given back

CHILDREN = {
    "forked": "fork(pause_for_ever)",
    "of multiprocessing": """
        multiprocessing.get_context("fork").Process(
            target=pause_for_ever, daemon=False
        )
    """,
    "not python": 'subprocess.Popen(["sleep", "1000"], close_fds=False).pid',
    "forked to execute another": """
        subprocess.Popen(
            ["sleep", "1000"], close_fds=False, preexec_fn=lambda: None
        ).pid
    """,
}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> str:
    """Devices that no other test uses."""
    name = f"fork-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("POPGATE_POOL", name)
    return name


def is_free(unit: str) -> bool:
    claim = try_claim(unit)
    if claim is not None:
        claim.close()
    return claim is not None


@pytest.mark.parametrize("how", ["returns", "is killed"])
@pytest.mark.parametrize("child", CHILDREN)
def test_a_device_is_given_back_though_a_child_lives_on(
    model: Path, pool: str, child: str, how: str
) -> None:
    body = textwrap.dedent(CHILDREN[child]).strip()
    if child == "of multiprocessing":
        body = f"child = {body}\nchild.start()\nchild = child.pid"
    else:
        body = f"child = {body}"
    script = (
        "import multiprocessing, subprocess\n"
        "runner = ModelRunner(path, manager=DeviceManager('cpu:1'))\n"
        "session = Session(path)\n"
        "session.bind_to_device(*runner.devices)\n"
        "process = runner.devices[0].pid\n"
        f"{body}\n"
        "print(child, process, flush=True)\n"
        "sys.stdin.read()\n"
        "session.close()\n"
        "runner.close()\n"
        "os._exit(0)\n"  # without waiting for what multiprocessing has started
    )
    parent = subprocess.Popen(
        command(script, model),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        left, process = map(int, parent.stdout.readline().split())
        try:
            assert not is_free("cpu:0")
            if how == "is killed":
                parent.kill()
            else:
                assert parent.stdin is not None
                parent.stdin.close()
            parent.wait(60)
            until(lambda: is_free("cpu:0"))
            until(lambda: is_gone(process))
            assert not is_gone(left)
        finally:
            os.kill(left, signal.SIGKILL)


def test_a_child_born_while_a_device_comes_or_goes_keeps_nothing_of_it(
    model: Path, pool: str
) -> None:
    script = """
    over = threading.Event()

    def attach():
        while not over.is_set():
            device = DeviceManager("cpu:2").get_device()
            device.close()

    thread = threading.Thread(target=attach)
    thread.start()
    children = [fork(pause_for_ever) for _ in range(60)]
    over.set()
    thread.join()
    devices = [DeviceManager("cpu:2").get_device() for _ in range(2)]
    for device in devices:
        device.close()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        assert status_of(pid) == -signal.SIGKILL
    print("well")
    """
    assert run(script, model) == "well\n"
