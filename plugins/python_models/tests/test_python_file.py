"""Python models on devices of their own: calls, batches, failures, death and return.

Covers: engine/runner/python_model.py,
    plugins/python_models/src/popgate_python_interface/model.py,
    plugins/python_models/src/popgate_python_worker/session.py,
    plugins/python_models/src/popgate_python_worker/children.py,
    plugins/python_models/src/popgate_python_worker/forked_child.py,
    plugins/python_models/src/popgate_python_worker/kind.py,
    plugins/python_models/src/popgate_python_files/python_file.py,
    engine/worker/python_kind.py,
    engine/devices/process_output.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    Device,
    DeviceLost,
    DeviceManager,
    ExecutionFailed,
    InvalidConfig,
    InvalidInput,
    InvalidModel,
    ModelRunner,
    ModelRunnerConfig,
    NoDeviceAvailable,
    PythonOptions,
    Request,
    Tensor,
)
from engine.devices import run_limits
from engine.runner import replica_loader
from engine.transport.device_messages import Describe, Described
from popgate_python_files import read_python_model
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until

HEAD = """
import os, sys, time
import numpy as np
from engine import InvalidInput

"""

IDENTITY = """
class Identity:
    inputs = {"x": "FP32[-1,4]"}
    outputs = {"y": "FP32[-1,4]"}
    batching = True
    def load(self, context):
        self.context, self.calls = context, []
    def __call__(self, x):
        self.calls.append(len(x))
        return {"y": x}
"""


@contextlib.contextmanager
def served(
    folder: Path,
    text: str,
    options: PythonOptions | None = None,
    parameters: Mapping[str, Any] | None = None,
    requirements: tuple[str, ...] = (),
    **config: Any,
) -> Iterator[ModelRunner]:
    """A runner of the `model.py` that has this text."""
    file = folder / "model.py"
    file.write_text(HEAD + textwrap.dedent(text))
    manager = DeviceManager("cpu:1")
    device = manager.create_python_device(options or PythonOptions())
    with contextlib.ExitStack() as ends:
        ends.callback(device.close)
        model = read_python_model(
            device, file, parameters=parameters, requirements=requirements
        )
        found = ModelRunnerConfig(
            replica_to_device={0: device}, auto_reset=True, batching_dim=None, **config
        )
        yield ends.enter_context(ModelRunner(model, found))


def rows(count: int, value: float = 1.0) -> np.ndarray[Any, Any]:
    return np.full((count, 4), value, np.float32)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_a_class_is_called_with_all_rows_of_a_batch(tmp_path: Path) -> None:
    text = """
        class Counted:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]", "rows": "INT64[-1]"}
            batching = True
            def __call__(self, x):
                while len(x) == 1 and not os.path.exists(GO):
                    time.sleep(0.001)
                return {"y": x * 2, "rows": np.full(len(x), len(x))}
    """
    go = tmp_path / "go"
    with served(tmp_path, f"GO = {str(go)!r}\n" + textwrap.dedent(text)) as runner:
        assert runner.max_batch_size == 64
        device = runner.devices[0]
        requests = [runner.submit({"x": Tensor.from_numpy(rows(1))})]
        until(lambda: device.ping().running_ns)
        for value in range(6):
            tensor = Tensor.from_numpy(rows(2, value))
            requests.append(runner.submit({"x": tensor}))
        go.touch()
        for value, request in enumerate(requests[1:]):
            assert request.wait(WAIT)
            assert (request.outputs["y"].numpy() == value * 2).all()
            assert list(request.outputs["rows"].numpy()) == [12, 12]


def test_a_function_with_annotations_is_a_model(tmp_path: Path) -> None:
    text = """
        from __future__ import annotations
        from typing import Annotated
        def predict(
            text: Annotated[np.ndarray, "BYTES[-1]"]
        ) -> Annotated[np.ndarray, "INT32[-1]"]:
            return [len(each) for each in text]
    """
    with served(tmp_path, textwrap.dedent(text).replace("from __future__", "#")) as r:
        words = np.array([b"a", b"abc"], object)
        assert list(r.execute({"text": words})["output"]) == [1, 3]


def test_strings_go_out_as_bytes_or_text(tmp_path: Path) -> None:
    text = """
        class Upper:
            inputs = {"text": "BYTES[-1]"}
            outputs = {"as_bytes": "BYTES[-1]", "as_text": "BYTES[-1]"}
            def __call__(self, text):
                assert all(type(each) is bytes for each in text)
                return {"as_bytes": [t + b"\\0" for t in text],
                        "as_text": np.array([t.decode() for t in text])}
    """
    with served(tmp_path, text) as runner:
        found = runner.execute({"text": np.array([b"x", "ü".encode()], object)})
        assert list(found["as_bytes"]) == [b"x\0", "ü".encode() + b"\0"]
        assert list(found["as_text"]) == [b"x", "ü".encode()]


def test_only_the_guilty_rows_fail(tmp_path: Path) -> None:
    text = """
        class Touchy:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            batching = True
            def __call__(self, x):
                if (x < 0).any():
                    raise ValueError("below zero")
                if (x == 7).any():
                    raise InvalidInput("seven is refused")
                return {"y": x}
    """
    with served(tmp_path, text, max_queue_delay=0.05) as runner:
        requests: list[Request] = []
        for number in range(180):
            value = {60: -1.0, 90: 7.0, 120: -2.0}.get(number, number + 100.0)
            requests.append(runner.submit({"x": Tensor.from_numpy(rows(1, value))}))
        failed: dict[int, str] = {}
        for number, request in enumerate(requests):
            assert request.wait(WAIT)
            if request.error is None:
                assert (request.outputs["y"].numpy() == number + 100.0).all()
            else:
                failed[number] = str(request.error)
        assert sorted(failed) == [60, 90, 120]
        assert isinstance(requests[90].error, InvalidInput)
        assert failed[90] == "seven is refused"
        error = requests[60].error
        assert isinstance(error, ExecutionFailed)
        assert not error.callers_fault
        assert failed[60] == "ValueError: below zero; model.py, line 13, in __call__"


def test_what_a_model_prints_and_its_traceback_go_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = """
        class Loud:
            inputs = {"x": "FP32[-1]"}
            outputs = {"y": "FP32[-1]"}
            def load(self, context):
                print("hello from load")
                context.log.warning("%s on %s", context.config["greeting"],
                                    context.device)
            def __call__(self, x):
                os.write(2, b"from below\\n")
                raise KeyError("nope")
    """
    caplog.set_level(logging.DEBUG, "engine.python")
    options = PythonOptions(label="loud/1")

    def said(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    with served(tmp_path, text, options, {"greeting": "hi"}) as runner:
        with pytest.raises(ExecutionFailed, match="KeyError: 'nope'"):
            runner.execute({"x": np.ones(2, np.float32)})
        for line in (
            "model loud/1: hello from load",
            "model loud/1: from below",
            'raise KeyError("nope")',
        ):
            until(partial(said, line), line)
        warned = f"model loud/1: model: hi on {runner.devices[0].id}"
        until(lambda: said(warned))
        levels = {r.levelno for r in caplog.records if r.getMessage() == warned}
        assert levels == {logging.WARNING}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_like_this", "No module named 'nothing_like_this'; model.py, "),
        ("def f(:\n    pass", "SyntaxError: .*; model.py, line 6: def f"),
        ("x = 1 / 0", r"ZeroDivisionError: division by zero; model.py, line 6, in "),
        ("x = 1", "expected a class with inputs, outputs and __call__, or a function"),
        ("raise SystemExit(3)", "SystemExit: 3; model.py, line 6, in <module>"),
        (IDENTITY.replace("FP32[-1,4]", "FP33[-1,4]"), "FP33; expected one of BOOL"),
        (
            IDENTITY.replace("FP32[-1,4]", "FP32[2,4]"),
            "the first size of every tensor must be",
        ),
        (
            IDENTITY.replace("self, x", "self, z"),
            "does not accept the inputs x: missing",
        ),
        (
            IDENTITY.replace("return {", "yield {"),
            "Identity.__call__ is a generator, which answers one request",
        ),
        (IDENTITY + IDENTITY.replace("class I", "class Other_i"), "got several"),
    ],
)
def test_what_cannot_be_loaded_says_where(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidModel, match=message), served(tmp_path, text):
        pass


def test_an_error_of_load_names_the_lines(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def read():\n    return open('/none')\n")
    text = IDENTITY.replace("self.context,", "import helper; helper.read();")
    expected = (
        "model.py, line 12, in load: import helper; .*"
        r"helper.py, line 2, in read: return open\('/none'\)"
    )
    with pytest.raises(InvalidModel, match=expected), served(tmp_path, text):
        pass


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("{'y': x[:, :2]}", r"output 'y' has shape \[1, 2\], expected FP32\[-1,4\]"),
        ("{'z': x}", "'z', which is not one of its outputs y"),
        ("{}", "returned no output 'y'"),
        ("None", "the model returned NoneType, expected a mapping with its outputs y"),
        ("{'y': np.full(x.shape, 1j)}", "output 'y' is complex128, expected FP32"),
        ("{'y': [['a'] * 4]}", "output 'y' is <U1"),
        ("{'y': x[:0]}", "output 'y' must have 1 row, got 0"),
    ],
)
def test_what_is_no_answer_says_what_was_expected(
    tmp_path: Path, result: str, message: str
) -> None:
    text = IDENTITY.replace("{'y': x}", "").replace('{"y": x}', result)
    failing = pytest.raises(ExecutionFailed, match=message)
    with served(tmp_path, text, batching=False) as runner, failing:
        runner.execute({"x": rows(1)})


def test_inputs_cannot_be_written(tmp_path: Path) -> None:
    text = IDENTITY.replace("self.calls.append(len(x))", "x[:] = 0")
    with (
        served(tmp_path, text) as runner,
        pytest.raises(ExecutionFailed, match="read-only"),
    ):
        runner.execute({"x": rows(1)})


def test_a_model_may_keep_its_inputs(tmp_path: Path) -> None:
    """They are worth nothing then, but do no harm when the model is unloaded."""
    text = IDENTITY.replace("self.calls.append(len(x))", "self.calls.append(x)")
    with served(tmp_path, text) as runner:
        for value in range(20):
            assert (runner.execute({"x": rows(2, value)})["y"] == value).all()


def test_close_is_called_where_a_model_is_unloaded(tmp_path: Path) -> None:
    text = IDENTITY + (
        "    def close(self):\n"
        "        open(self.context.folder / 'closed', 'w').write(str(self.calls))\n"
    )
    with served(tmp_path, text) as runner:
        runner.execute({"x": rows(3)})
    assert (tmp_path / "closed").read_text() == "[3]"


def test_a_process_that_ends_comes_back(tmp_path: Path) -> None:
    text = """
        class Ends:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                if x[0, 0] == 3:
                    os._exit(3)
                return {"y": x}
    """
    with (
        DeviceManager("cpu:1").get_device() as beside,
        ModelRunner(
            models.slow(tmp_path / "m.popef"),
            ModelRunnerConfig(replica_to_device={0: beside}),
        ) as other,
        served(tmp_path, text) as runner,
    ):
        (device,) = runner.devices
        count = Tensor.from_numpy(np.array(FOR_EVER, np.int64))
        unconcerned = other.submit({"count": count})
        # The file has changed since: what comes back is what was loaded.
        (tmp_path / "model.py").write_text("raise RuntimeError")
        for _ in range(2):
            with pytest.raises(DeviceLost):
                runner.execute({"x": rows(1, 3)})
            device.recover()
            assert (runner.execute({"x": rows(2, 5)})["y"] == 5).all()
        assert device.restarts == 2
        assert not unconcerned.wait(0)
        assert beside.ping().running_ns > 0
        assert beside.restarts == 0
        unconcerned.cancel()


def test_memory_is_bounded(tmp_path: Path) -> None:
    text = """
        class Greedy:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                if x[0, 0] == 3:
                    taken = [np.ones(1 << 24) for _ in range(1000)]
                return {"y": x}
    """
    options = PythonOptions(memory=1 << 30)
    with served(tmp_path, text, options) as runner:
        with pytest.raises(ExecutionFailed, match="not enough memory for the model"):
            runner.execute({"x": rows(1, 3)})
        assert (runner.execute({"x": rows(1, 4)})["y"] == 4).all()
        assert runner.devices[0].restarts == 0


@pytest.mark.parametrize("waits", ["cancelled", "limited"])
def test_a_run_that_does_not_end_costs_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    text = """
        class Stuck:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                while x[0, 0] == 3:
                    time.sleep(0.01)
                return {"y": x}
    """
    monkeypatch.setattr(run_limits, "RUN_GRACE", 0.1)
    limit = 0.1 if waits == "limited" else 1000.0
    with served(tmp_path, text, run_timeout=limit) as runner:
        (device,) = runner.devices
        pid = device.pid
        request = runner.submit({"x": Tensor.from_numpy(rows(1, 3))})
        until(lambda: device.ping().running_ns)
        if waits == "cancelled":
            request.cancel()

        def judged() -> bool:
            with contextlib.suppress(DeviceLost):
                device.limits.judge(device.ping())
            return is_gone(pid or 0)

        until(judged)
        device.recover()
        assert runner.failure is None
        assert (runner.execute({"x": rows(2, 5)})["y"] == 5).all()


def test_a_cancelled_run_may_look(tmp_path: Path) -> None:
    text = """
        class Polite:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def load(self, context):
                self.context = context
            def __call__(self, x):
                while x[0, 0] == 3 and not self.context.cancelled:
                    time.sleep(0.001)
                return {"y": x}
    """
    with served(tmp_path, text) as runner:
        (device,) = runner.devices
        request = runner.submit({"x": Tensor.from_numpy(rows(1, 3))})
        until(lambda: device.ping().running_ns)
        request.cancel()
        until(lambda: not device.ping().running_ns)
        assert (runner.execute({"x": rows(2, 5)})["y"] == 5).all()
        assert device.restarts == 0


def test_a_process_that_hangs_in_c_is_replaced(tmp_path: Path) -> None:
    text = """
        import ctypes
        class Hangs:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                if x[0, 0] == 3:
                    ctypes.PyDLL(None).pause()  # holds the interpreter's lock
                return {"y": x}
    """
    with served(tmp_path, text) as runner:
        (device,) = runner.devices
        device.ping_timeout = 0.5
        with pytest.raises(DeviceLost, match="has not answered"):
            runner.execute({"x": rows(1, 3)})
        device.ping_timeout = 10.0
        assert (runner.execute({"x": rows(2, 5)})["y"] == 5).all()


def test_what_a_model_starts_ends_with_it(tmp_path: Path) -> None:
    text = IDENTITY.replace(
        "self.context, self.calls",
        "import subprocess; self.child = subprocess.Popen(['sleep', '1000'])\n"
        "        open(context.folder / 'child', 'w').write(str(self.child.pid))\n"
        "        self.context, self.calls",
    )
    with served(tmp_path, text) as runner:
        child = int((tmp_path / "child").read_text())
        assert not is_gone(child)
        os.kill(runner.devices[0].pid or 0, signal.SIGKILL)
        until(lambda: not runner.devices[0].check())
        until(lambda: is_gone(child))
        runner.devices[0].recover()
        child = int((tmp_path / "child").read_text())
        assert not is_gone(child)
    until(lambda: is_gone(child))


@pytest.mark.parametrize("name", ["engine.py", "engine/__init__.py", "popef_io.py"])
def test_a_module_with_the_name_of_a_package_is_refused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("def scale(x): return 2 * x")
    package = name.partition("/")[0].removesuffix(".py")
    text = f"def later():\n    from {package} import scale\n{IDENTITY}"
    expected = rf"model\.py, line \d+: '{package}' is a package of PopGate"
    with pytest.raises(InvalidModel, match=expected), served(tmp_path, text):
        pass
    if package != "engine":
        with served(tmp_path, IDENTITY):
            pass  # the model does not import it


def test_environment_and_folder_are_the_models(tmp_path: Path) -> None:
    text = """
        class Seen:
            inputs = {"x": "FP32[-1]"}
            outputs = {"seen": "BYTES[4]"}
            def __call__(self, x):
                names = ("COLOUR", "OMP_NUM_THREADS", "POPGATE_API_KEY")
                return [os.environ.get(name, "") for name in names] + [os.getcwd()]
    """
    work = tmp_path / "work"
    work.mkdir()
    options = PythonOptions(environment={"COLOUR": "red"}, folder=str(work))
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as ends:
        patch.setenv("POPGATE_API_KEY", "secret")
        patch.delenv("OMP_NUM_THREADS", raising=False)
        runner = ends.enter_context(served(tmp_path, text, options))
        found = list(runner.execute({"x": np.ones(1, np.float32)})["seen"])
        threads = str(runner.devices[0].threads).encode()
        assert found == [b"red", threads, b"", str(work).encode()]


def test_requirements_are_checked(tmp_path: Path) -> None:
    with served(tmp_path, IDENTITY, requirements=("numpy>=1,<1000", "msgpack")):
        pass
    expected = (
        f"numpy<1 is required, but numpy {np.__version__} is installed; none-such"
    )
    with (
        pytest.raises(InvalidModel, match=expected),
        served(tmp_path, IDENTITY, requirements=("numpy<1", "none-such")),
    ):
        pass


def test_devices_of_the_two_kinds_are_kept_apart(tmp_path: Path) -> None:
    manager = DeviceManager("cpu:1,python:1")
    assert manager.graph_units == ("cpu:0",)
    file = tmp_path / "model.py"
    file.write_text(IDENTITY)
    with (
        manager.create_python_device(PythonOptions()) as device,
        manager.get_device() as other,
    ):
        assert (device.id, other.id) == ("python:0", "cpu:0")
        with pytest.raises(NoDeviceAvailable, match="no device is free"):
            manager.create_python_device(PythonOptions())
        with pytest.raises(
            InvalidConfig, match="device cpu:0 cannot run a Python model"
        ):
            read_python_model(other, file)
        model = read_python_model(device, file)
        config = ModelRunnerConfig(replica_to_device={0: other})
        with pytest.raises(
            InvalidConfig, match="device cpu:0 cannot run a Python model"
        ):
            ModelRunner(model, config)
        with pytest.raises(InvalidConfig, match="1 of 1 have none"):
            ModelRunner(model)
        # The container that stands for it is no way in for code.
        with pytest.raises(InvalidModel, match="Python models only"):
            ModelRunner(
                model.interface, ModelRunnerConfig(replica_to_device={0: device})
            )
        with pytest.raises(InvalidModel, match="cannot load the model"):
            ModelRunner(model.interface, config)
        about = model.code.to_message(device)
        with (
            file.open("rb") as stream,
            pytest.raises(InvalidModel, match="runs no Python models"),
        ):
            other.call(Describe(about), Described, [stream.fileno()])


def test_an_import_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import time\ntime.sleep(1000)\n")
    with DeviceManager("cpu:1").create_python_device(PythonOptions()) as device:
        pid = device.pid or 0
        with pytest.raises(
            InvalidModel, match=r"the import of model.py exceeded 0\.2 s"
        ):
            read_python_model(device, file, timeout=0.2)
        until(lambda: is_gone(pid))


def start(options: PythonOptions) -> Callable[[], Device]:
    return lambda: DeviceManager("cpu:1").create_python_device(options)


def test_an_interpreter_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(DeviceLost, match="No such file or directory: '/none/python'"):
        start(PythonOptions(interpreter="/none/python"))()
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho this is no Python >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(DeviceLost, match="failed to start: this is no Python"):
        start(PythonOptions(interpreter=str(script)))()


def test_many_threads_call_at_once(tmp_path: Path) -> None:
    with served(tmp_path, IDENTITY) as runner:
        wrong: list[object] = []

        def ask(value: int) -> None:
            answers = (runner.execute({"x": rows(1, value)})["y"] for _ in range(30))
            wrong.extend(each for each in answers if (each != value).any())

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


FORKS = {
    "call": """
        class Forks:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                child = os.fork()
                return {"y": x + (0 if child else 100)}
    """,
    "exit": """
        class Forks:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                if os.fork() == 0:
                    sys.exit(0)
                return {"y": x}
    """,
    "raise": """
        class Forks:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                if os.fork() == 0:
                    raise ValueError("of the child")
                return {"y": x}
    """,
    "coroutine": """
        class Forks:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            async def __call__(self, x):
                child = os.fork()
                return {"y": x + (0 if child else 100)}
    """,
    "load": """
        class Forks:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def load(self, context):
                self.child = os.fork() == 0
            def __call__(self, x):
                return {"y": x + (100 if self.child else 0)}
    """,
    "import": """
        CHILD = os.fork() == 0
        class Forks:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                return {"y": x + (100 if CHILD else 0)}
    """,
    "multiprocessing": """
        import multiprocessing
        def double(pipe, x):
            pipe.send(2 * x)
        class Forks:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                context = multiprocessing.get_context("fork")
                mine, theirs = context.Pipe()
                child = context.Process(target=double, args=(theirs, x))
                child.start()
                doubled = mine.recv()
                child.join()
                return {"y": doubled - x}
    """,
}


@pytest.mark.parametrize("kind", FORKS)
def test_a_forked_child_answers_nothing(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, FORKS[kind]) as runner:
        (device,) = runner.devices
        group = os.getpgid(device.pid or 0)
        for number in range(8):
            found = runner.execute({"x": rows(1, number)})["y"]
            assert (found == number).all()

        def alive() -> list[int]:
            """The processes of the model's group that have not ended."""
            found = []
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
                    if int(of) == group and state != "Z":
                        found.append(int(stat.parent.name))
            return found

        until(lambda: alive() == [device.pid])
        assert device.restarts == 0


@pytest.mark.parametrize(
    ("declared", "value", "error"),
    [
        ("INT32[2]", "np.array([1, 2**31])", "has the value 2147483648, which INT32"),
        ("INT8[]", "-129", "has the value -129, which INT8"),
        ("UINT8[1]", "np.array([256], np.uint16)", "has the value 256, which UINT8"),
        ("FP32[2]", "[np.inf, -1e39]", r"has the value -1e[+]39, which FP32"),
        ("FP16[]", "70000", "has the value 70000, which FP16"),
        ("FP32[2]", "np.ma.masked_greater([1.0, 2.0], 1)", "'y' has masked values"),
        ("BYTES[2]", "['\u00e9', '\ud800']", "string that is not valid Unicode"),
    ],
)
def test_an_output_that_its_type_cannot_hold(
    tmp_path: Path, declared: str, value: str, error: str
) -> None:
    text = f"""
        class Wide:
            inputs = {{"x": "FP32[1]"}}
            outputs = {{"y": "{declared}"}}
            def __call__(self, x):
                return {{"y": {ascii(value)[1:-1]}}}
    """
    wrong = pytest.raises(ExecutionFailed, match=error)
    with served(tmp_path, text) as runner, wrong:
        runner.execute({"x": np.ones(1, np.float32)})


def test_numbers_that_are_infinite_stay_so(tmp_path: Path) -> None:
    text = """
        class Endless:
            inputs = {"x": "FP32[1]"}
            outputs = {"y": "FP32[3]"}
            def __call__(self, x):
                return {"y": [np.inf, -np.inf, np.nan]}
    """
    with served(tmp_path, text) as runner:
        found = runner.execute({"x": np.ones(1, np.float32)})["y"]
        np.testing.assert_equal(found, [np.inf, -np.inf, np.nan])


def test_an_error_whose_text_exits_fails_its_request(tmp_path: Path) -> None:
    text = """
        class Error(Exception):
            def __str__(self):
                sys.exit(0)
        class Exits:
            inputs = {"x": "FP32[1]"}
            outputs = {"y": "FP32[1]"}
            def __call__(self, x):
                raise Error
    """
    with served(tmp_path, text) as runner:
        with pytest.raises(ExecutionFailed, match=r"^Error; model\.py, line"):
            runner.execute({"x": np.ones(1, np.float32)}, timeout=WAIT)
        assert runner.devices[0].restarts == 0


def test_a_process_whose_signal_handler_exits_is_lost_at_once(tmp_path: Path) -> None:
    """The handler runs in the thread that runs programs, between runs. The interpreter
    would wait for the other thread.
    """
    text = """
        import signal, threading
        class Exits:
            inputs = {"x": "FP32[1]"}
            outputs = {"y": "FP32[1]"}
            def load(self, context):
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                threading.Thread(target=time.sleep, args=(3600,)).start()
            def __call__(self, x):
                return {"y": x}
    """
    with served(tmp_path, text) as runner:
        (device,) = runner.devices
        pid = device.pid or 0
        runner.execute({"x": np.ones(1, np.float32)}, timeout=WAIT)
        os.kill(pid, signal.SIGTERM)
        until(lambda: is_gone(pid))


ENDS = {
    "subprocess": """
                child = subprocess.Popen(["sleep", "1000"])
                child.terminate()
                return child.wait()
    """,
    "fork": """
                child = multiprocessing.get_context("fork").Process(target=wait)
                child.start()
                child.terminate()
                child.join()
                return child.exitcode
    """,
    "other thread": """
                with ThreadPoolExecutor(1) as pool:
                    return pool.submit(self.forked).result()
            def forked(self):
                child = os.fork()
                if child == 0:
                    signal.pause()
                os.kill(child, signal.SIGTERM)
                return -os.waitpid(child, 0)[1]
    """,
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_model_ends_its_children_by_a_signal(tmp_path: Path, kind: str) -> None:
    text = f"""
        import multiprocessing, signal, subprocess
        from concurrent.futures import ThreadPoolExecutor
        def wait():
            signal.pause()
        class Starts:
            inputs = {{"x": "FP32[-1,4]"}}
            outputs = {{"y": "FP32[-1,4]"}}
            def __call__(self, x):
                return {{"y": x * sum(self.ended() for _ in range(4))}}
            def ended(self):
                {ENDS[kind].strip()}
    """
    with served(tmp_path, text) as runner:
        (device,) = runner.devices
        os.kill(device.pid or 0, signal.SIGTERM)  # which the model's process ignores
        found = runner.execute({"x": rows(1, 1)}, timeout=WAIT)["y"]
        assert (found == -4 * signal.SIGTERM).all()
        assert device.restarts == 0


STAYS = {
    "fork": """
                child = os.fork()
                if child == 0:
                    signal.pause()
                return child
    """,
    "daemon": """
                ends, end = os.pipe()
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        os.write(end, b"%d" % os.getpid())
                        signal.pause()
                    os._exit(0)
                return int(os.read(ends, 20))
    """,
    "command": """
                os.system("setsid sleep 1000 & echo $! > pid")
                return int(open("pid").read())
    """,
}


@pytest.mark.parametrize("kind", STAYS)
def test_a_process_that_dies_before_its_child(tmp_path: Path, kind: str) -> None:
    text = f"""
        import signal
        class Starts:
            inputs = {{"x": "FP32[-1,4]"}}
            outputs = {{"y": "FP64[1]"}}
            def __call__(self, x):
                return {{"y": [self.child() if x[0, 0] else 0]}}
            def child(self):
                {STAYS[kind].strip()}
    """
    options = PythonOptions(folder=str(tmp_path))
    with contextlib.ExitStack() as ends, served(tmp_path, text, options) as runner:
        (device,) = runner.devices
        device.ping_timeout = 0.0  # only the end of its sockets tells of the death
        child = int(runner.execute({"x": rows(1)})["y"][0])
        if kind != "fork":  # which ends with the group of its parent
            ends.callback(os.kill, child, signal.SIGKILL)
        os.kill(device.pid or 0, signal.SIGKILL)
        until(lambda: not device.check())
        assert device.lost_by == "its process died of SIGKILL"
        device.recover()
        assert runner.execute({"x": rows(1, 0)}, timeout=WAIT)["y"] == 0


@pytest.mark.parametrize("given", [0, 2])
def test_another_number_of_rows_than_asked_for(tmp_path: Path, given: int) -> None:
    text = f"""
        class Wrong:
            inputs = {{"x": "FP32[-1,4]"}}
            outputs = {{"y": "FP32[-1,4]"}}
            batching = True
            def __call__(self, x):
                return {{"y": np.ones(({given}, 4), np.float32)}}
    """
    wrong = pytest.raises(ExecutionFailed, match=rf"must have 1 row, got {given}")
    with served(tmp_path, text) as runner, wrong:
        runner.execute({"x": rows(1, 3)})


def test_a_long_message_is_cut_in_the_answer_and_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = """
        class Long:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                raise ValueError("word " * 10_000_000)
    """
    with served(tmp_path, text) as runner:
        with pytest.raises(ExecutionFailed, match="ValueError: word") as failed:
            runner.execute({"x": rows(1, 3)})
        assert len(str(failed.value)) < 1500
    said = len(caplog.text) + sum(len(each) for each in capfd.readouterr())
    assert said < 100_000


def test_a_close_that_takes_long_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_loader, "CLOSE_TIMEOUT", 0.2)
    text = """
        class Slow:
            inputs = {"x": "FP32[-1,4]"}
            outputs = {"y": "FP32[-1,4]"}
            def __call__(self, x):
                return {"y": x}
            def close(self):
                time.sleep(3600)
    """
    with served(tmp_path, text) as runner:
        (device,) = runner.devices
        pid = device.pid or 0
        runner.execute({"x": rows(1, 3)})
        runner.close()
        assert is_gone(pid)
