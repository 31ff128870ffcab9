"""`model_runtime`: what goes wrong is a RuntimeError, as of a module written in C++,
says what was expected and what came, and comes where it is given."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_runtime as mr
import popef
from engine import InvalidInput, InvalidModel, UnknownAnchor
from tests.engine import models

ONES = np.ones((3, 4), np.float32)
callbacks = mr.predicate_factory.anchor_callbacks
#: What is wrong everywhere it is given, for the eyes of a type checker too.
WRONG: Any = 3
NOTHING: Any = None
TEXT: Any = "P90"


def request_of(**other: Any) -> dict[str, Any]:
    return {"tensor_A": ONES, "tensor_B": ONES, **other}


def many_models(folder: Path) -> str:
    return str(folder / "two_models.popef")


def a_view() -> mr.InputMemoryView:
    return mr.InputMemoryView()


WITHOUT_A_MODEL: list[tuple[Callable[[Path], Any], type[Exception], str]] = [
    (lambda _: mr.ModelRunner(WRONG), TypeError, "expected the path of a file, Popef"),
    (lambda _: mr.ModelRunner([WRONG]), TypeError, "path of a file, got int: 3"),
    (lambda _: mr.Session(WRONG), TypeError, "expected the path of a file, PopefPaths"),
    (lambda _: mr.ModelRunner([]), InvalidModel, "expected the paths of files, got no"),
    (lambda _: mr.ModelRunner("/nosuch"), InvalidModel, "cannot read /nosuch: No such"),
    (lambda _: mr.ModelRunner(b"/nosuch"), InvalidModel, "cannot read /nosuch: No suc"),
    (lambda _: mr.PopefPaths(WRONG), TypeError, "expected paths of files, got int: 3"),
    (
        lambda folder: mr.ModelRunner(many_models(folder)),
        InvalidModel,
        r"there are several executables; name one of .*; popef\.ModelBuilder",
    ),
    (lambda _: mr.TensorMemory(-1), ValueError, "a number of at least 0, got -1"),
    (lambda _: mr.TensorMemory(WRONG + 0.5), TypeError, "whole number, got float"),
    (lambda _: mr.TensorMemoryView(b"123"), ValueError, "the memory is read-only"),
    (lambda _: mr.TensorMemoryView(bytearray(3), 4), ValueError, "the memory has 3"),
    (lambda _: mr.ConstTensorMemoryView(WRONG), TypeError, "'data': expected a numpy"),
    (lambda _: mr.ConstTensorMemoryView(ONES.T), ValueError, "not contiguous in row-"),
    (lambda _: a_view().update(x=[1.0]), TypeError, "'x': expected a numpy array of"),
    (lambda _: a_view().update({WRONG: b""}), TypeError, "the name of a tensor, got i"),
    (lambda _: a_view()["x"], KeyError, "^there is no 'x'; the names are "),
    (
        lambda _: mr.OutputMemoryView().update(x=b"1"),
        ValueError,
        "the memory for output 'x' is read-only",
    ),
    (
        lambda _: mr.RingMemoryPool(0, 1),
        RuntimeError,
        "needs sizes of at least 1, got 0 x 1",
    ),
    (lambda _: mr.RingMemoryPool(1, WRONG / 2), TypeError, "whole number, got float"),
    (lambda _: mr.SpscRingBuffer(0, "r"), RuntimeError, "at least one slot, got 0"),
    (lambda _: mr.RingMemoryPool(1 << 62, 1 << 62), RuntimeError, "is too large"),
    (lambda _: mr.SpscRingBuffer(10**18, "r"), RuntimeError, "at most 16777216 buffer"),
    (lambda _: mr.ModelRunner("a\0b"), ValueError, "got a zero byte in"),
    (lambda _: mr.SpscRingBuffer(2, WRONG), TypeError, "expected a string, got int"),
    (lambda _: mr.SpscRingBuffer(2, "r").write(NOTHING), TypeError, "got None"),
    (lambda _: mr.SpscRingBuffer(2, "r").writeComplete(), RuntimeError, "without writ"),
    (lambda _: mr.InputRingBuffer(2, "r").write(WRONG), TypeError, "expected InputDat"),
    (lambda _: mr.allocateQueueStorage(WRONG), TypeError, "expected IQueue, got int"),
    (lambda _: setattr(mr.InputData(), "data", ONES.T), ValueError, "not contiguous"),
    (
        lambda _: setattr(mr.InputData(), "readStartCallback", 3),
        TypeError,
        "expected a readStartCallback to call, got int: 3",
    ),
    (lambda _: mr.DeviceManager().getDevice(WRONG / 2), TypeError, "number of IPUs or"),
    (lambda _: mr.DeviceManager().getDevice(0), RuntimeError, "0"),
    (lambda _: mr.DeviceManager().getDevice(1, WRONG), TypeError, "options as a dict"),
    (
        lambda _: mr.DeviceManager().getDevice(1, {}, WRONG),
        TypeError,
        "expected DeviceWaitConfig, got int",
    ),
    (
        lambda _: mr.DeviceManager().getDevice(1, constraints=WRONG),
        TypeError,
        "expected DeviceConstraints, got int",
    ),
    (
        lambda _: mr.DeviceManager().getSpecificDevice(WRONG / 2),
        TypeError,
        "expected a whole number, got float",
    ),
    (
        lambda _: mr.DeviceManager().createIpuModelDevice(1, 3),
        RuntimeError,
        "ipu_version must be one of",
    ),
    (
        lambda _: mr.DataDesc("x", 4, "34", popef.DataType.F32),  # type: ignore[arg-type]
        TypeError,
        "shape: expected a list of whole numbers, got str",
    ),
    (
        lambda _: mr.DataDesc("x", 4, [1], np.float32),  # type: ignore[arg-type]
        TypeError,
        "data_type: expected DataType",
    ),
    (
        lambda _: callbacks.predProgramIndexes(["main"]),  # type: ignore[list-item]
        TypeError,
        "whole number, got str",
    ),
    (lambda _: callbacks.predProgramIndexes(WRONG), TypeError, "expected a list"),
    (
        lambda _: callbacks.predAnchorsPolicies([WRONG]),
        TypeError,
        "expected AnchorWithPolicy, got int: 3",
    ),
    (
        lambda _: callbacks.orBind(
            mr.AnchorCallbackPolicy.SKIP_CB, mr.AnchorCallbackPolicy.SKIP_CB, WRONG
        ),
        TypeError,
        "expected a predicate to call, got int: 3",
    ),
    (
        lambda _: mr.ring_size_multiplier_factory.ringSizeMultForProgs(WRONG, 2),
        TypeError,
        "expected a list of whole numbers, got int",
    ),
]


@pytest.mark.parametrize(("call", "kind", "says"), WITHOUT_A_MODEL)
def test_every_error_is_a_runtime_error(
    call: Callable[[Path], Any], kind: type[Exception], says: str, simple: str
) -> None:
    with pytest.raises(RuntimeError, match=says) as caught:
        call(Path(simple).parent)
    assert isinstance(caught.value, kind)


OF_A_RUNNER: list[tuple[Callable[[mr.ModelRunner], Any], type[Exception], str]] = [
    (lambda r: r.execute(WRONG), TypeError, "a view or a dict of memory by name, got"),
    (lambda r: r.execute({}), InvalidInput, "input 'tensor_A' is missing"),
    (lambda r: r.execute(request_of(x=ONES)), UnknownAnchor, "has no input 'x'"),
    (
        lambda r: r.execute(request_of(tensor_A=[1.0])),
        TypeError,
        r"'tensor_A': expected a numpy array of numbers or another buffer, got list",
    ),
    (
        lambda r: r.execute(request_of(tensor_A=ONES.astype(">f4"))),
        InvalidInput,
        "input 'tensor_A': numpy type >f4 is not in native byte order",
    ),
    (
        lambda r: r.execute(request_of(tensor_A=ONES.astype(complex))),
        InvalidInput,
        "input 'tensor_A': no PopEF data type corresponds to numpy type complex128",
    ),
    (
        lambda r: r.execute(request_of(tensor_A=ONES.astype(float))),
        InvalidInput,
        "input 'tensor_A' must be F32, got F64",
    ),
    (lambda r: r.execute(request_of(), WRONG), InvalidInput, r"must be .* got 3"),
    (
        lambda r: r.execute(request_of(), replica_id=-1),
        InvalidInput,
        r"must be .* got -1",
    ),
    (
        lambda r: r.execute(request_of(), replica_id=TEXT),
        TypeError,
        "expected a whole number, got str: 'P90'",
    ),
    (
        lambda r: r.execute(request_of())["x"],
        KeyError,
        r"no 'x'; the names are \['output'",
    ),
    (lambda r: r.executeAsync(request_of())["x"], KeyError, "^there is no 'x'"),
    (lambda r: r.getTimeTrace({}, 0, 5), RuntimeError, "no request number 5"),
    (lambda r: r.getTimeTrace(WRONG), TypeError, "expected dict, got int"),
    (lambda r: r.getTimeTrace({}, WRONG), InvalidInput, r"must be .* got 3"),
    (
        lambda r: r.getMonitoringStatisticsPercentile({}, 99),
        RuntimeError,
        "a quantile must be between 0 and 1, got 99",
    ),
    (
        lambda r: r.getMonitoringStatisticsPercentile({}, TEXT),
        TypeError,
        "expected a quantile from 0 to 1, got str",
    ),
    (
        pickle.dumps,
        TypeError,
        "cannot pickle or copy ModelRunner objects: make one in each process",
    ),
    (copy.copy, TypeError, "cannot pickle or copy ModelRunner objects"),
    (
        lambda r: pickle.dumps(r.executeAsync(request_of())),
        TypeError,
        "cannot pickle or copy OutputFutureMemory objects",
    ),
]


@pytest.mark.parametrize(("call", "kind", "says"), OF_A_RUNNER)
def test_every_error_of_a_runner_is_a_runtime_error(
    call: Callable[[mr.ModelRunner], Any],
    kind: type[Exception],
    says: str,
    runner: mr.ModelRunner,
) -> None:
    with pytest.raises(RuntimeError, match=says) as caught:
        call(runner)
    assert isinstance(caught.value, kind)
    assert runner.execute(request_of())["output"][0, 0] == 1.5


@pytest.fixture
def session(simple: str) -> mr.Session:
    session = mr.Session(simple)
    session.createQueueManager(4)
    return session


OF_A_SESSION: list[tuple[Callable[[mr.Session], Any], type[Exception], str]] = [
    (lambda s: s.bindToDevice(WRONG), TypeError, "expected Device, got int"),
    (lambda s: s.runPrograms(WRONG), TypeError, "expected a list of whole numbers"),
    (lambda s: s.runMainPrograms(), RuntimeError, "bind it to a device"),
    (lambda s: s.reload(), RuntimeError, "bind it to a device"),
    (
        lambda s: s.setUserInputHandler(lambda info: WRONG),
        TypeError,
        "must return a callback or None for anchor 'tensor_A', got int: 3",
    ),
    (
        lambda s: s.setUserOutputHandler(lambda info: WRONG),
        TypeError,
        "for anchor 'output', got int: 3",
    ),
    (lambda s: s.setUserInputHandler(WRONG), TypeError, "a factory to call, got int"),
    (
        lambda s: s.setUserInputHandler(lambda info: None, WRONG),
        TypeError,
        "expected a predicate to call, got int: 3",
    ),
    (
        lambda s: s.setCallbackForAnchor("none", print),
        UnknownAnchor,
        "expected one anchor with the handle or name 'none', found 0",
    ),
    (
        lambda s: s.setCallbackForAnchor("h2d_tensor_A", WRONG),
        TypeError,
        "expected a callback to call, got int: 3",
    ),
    (
        lambda s: s.createQueueManager("8"),  # type: ignore[arg-type]
        TypeError,
        "a number of buffers, or a function",
    ),
    (
        lambda s: s.createQueueManager(4).inputQueue("none"),
        UnknownAnchor,
        "there is no input queue 'none'; the queues are",
    ),
    (
        lambda s: s.createQueueManager(4).inputs["none"],
        KeyError,
        "^there is no 'none'; the names are",
    ),
    (
        lambda s: s.createQueueManager(4).inputQueue("tensor_A").enqueueComplete(),
        InvalidInput,
        "no slot of input queue 'tensor_A' is locked; lock and fill one first",
    ),
    (
        lambda s: s.createQueueManager(4).outputQueue("output").enqueueComplete(),
        InvalidInput,
        "no slot of output queue 'output' is locked",
    ),
    (
        lambda s: s.createQueueManager(4).inputQueue("tensor_A").enqueue(ONES.T),
        ValueError,
        "the memory is not contiguous in row-major order, as the queue needs it",
    ),
    (
        lambda s: s.createQueueManager(4).outputQueue("output").enqueue(ONES.tobytes()),
        InvalidInput,
        "output 'output' needs writable memory",
    ),
    (
        lambda s: s.createQueueManager(4).inputQueue("tensor_A").enqueue(ONES, 64),
        ValueError,
        "data_size is 64, but the memory has 48 bytes",
    ),
    (
        lambda s: s.createQueueManager(4).inputQueue("tensor_A").enqueue(ONES, 7),
        InvalidInput,
        "takes a multiple of 16 bytes, got 7",
    ),
    (
        lambda s: s.createQueueManager(4).inputQueue("tensor_A").enqueue(ONES, 16, 3),  # type: ignore[arg-type]
        TypeError,
        "expected a read_start_callback to call, got int",
    ),
    (pickle.dumps, TypeError, "cannot pickle or copy Session objects"),
    (
        lambda s: pickle.dumps(s.createQueueManager(4)),
        TypeError,
        "cannot pickle or copy QueueManager objects",
    ),
]


@pytest.mark.parametrize(("call", "kind", "says"), OF_A_SESSION)
def test_every_error_of_a_session_is_a_runtime_error(
    call: Callable[[mr.Session], Any],
    kind: type[Exception],
    says: str,
    session: mr.Session,
) -> None:
    with pytest.raises(RuntimeError, match=says) as caught:
        call(session)
    assert isinstance(caught.value, kind)


def test_types_are_compared_without_validation_too(simple: str) -> None:
    config = mr.ModelRunnerConfig()
    config.validate_io_params = False
    runner = mr.ModelRunner(simple, config)
    for dtype in (float, np.int32, np.float16):
        with pytest.raises(InvalidInput, match="input 'tensor_A' must be F32, got"):
            runner.execute(request_of(tensor_A=ONES.astype(dtype)))
    for shape in ((3, 5), (2, 4), (4, 3), (0, 4), (6, 4)):
        with pytest.raises(RuntimeError) as caught:
            runner.execute(request_of(tensor_A=np.ones(shape, np.float32)))
        assert "bug" not in str(caught.value)
    assert runner.execute(request_of())["output"][0, 0] == 1.5


def rewritten(simple: str, path: Path, change: Callable[[popef.Metadata], Any]) -> str:
    """`simple.popef` with other metadata."""
    reader = popef.Reader()
    reader.parseFile(simple)
    metadata = reader.metadata()[0]
    change(metadata)
    writer = popef.Writer(path)
    writer.writeMetadata(metadata)
    writer.createExecutable("simple").write(reader.executables()[0].executable())
    writer.createTensorData(reader.tensors()[0].info).write(reader.tensors()[0].data())
    writer.close()
    return str(path)


@pytest.mark.parametrize("phase", ["setMain", "setSave"])
def test_a_program_that_is_not_in_the_executable(
    phase: str, simple: str, tmp_path: Path
) -> None:
    path = rewritten(
        simple,
        tmp_path / "model.popef",
        lambda metadata: getattr(metadata.programFlow(), phase)([77]),
    )
    gc.collect()  # devices that errors of other tests hold
    with pytest.raises(InvalidModel, match="there is no program 77; the programs are"):
        mr.ModelRunner(path)


def test_other_graphs_than_were_packed_are_refused_by_the_session(
    tmp_path: Path,
) -> None:
    """Model Runtime User Guide 4.1.1: the constructor throws."""
    path = models.affine(tmp_path / "m.popef", wrong_digest=True)
    with pytest.raises(InvalidModel, match="digest"):
        mr.Session(path)
    config = mr.SessionConfig()
    config.check_package_hash = False
    assert mr.Session(path, config).getInputAnchors()[0].name() == "input"
