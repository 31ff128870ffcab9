"""The low level: callbacks on anchors, predicates, load and save programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import build_popef
import numpy as np
import pytest

import model_runtime as mr
import popef
from model_runtime.predicate_factory import anchor_callbacks, popef_data_usage

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("popef")
    build_popef.build_all(folder)
    return folder


@pytest.fixture(scope="module")
def device() -> mr.Device:
    return mr.DeviceManager().getDevice(1)


def model_of(path: Path) -> popef.Model:
    reader = popef.Reader()
    reader.parseFile(str(path))
    return popef.ModelBuilder(reader).createModel()


def bound(path: Path, device: mr.Device, **options: Any) -> mr.Session:
    session = mr.Session(model_of(path), mr.SessionConfig(**options))
    session.bindToDevice(device)
    return session


def test_load_main_and_save(folder: Path, device: mr.Device) -> None:
    session = bound(folder / "accumulator.popef", device, max_look_ahead="0")
    flow = session.model().metadata.programFlow()
    sums: list[float] = []
    saved: list[float] = []

    def inputs(info: mr.CallbackInfo) -> Any:
        assert info.anchor.name() == "increment"
        return lambda memory: memory.fill(2)

    def outputs(info: mr.CallbackInfo) -> Any:
        assert info.anchor.handle() == "d2h_sum"
        return lambda memory: sums.append(float(np.frombuffer(memory, np.float32)[0]))

    session.setUserInputHandler(inputs)
    session.setUserOutputHandler(outputs, anchor_callbacks.predProgramFlowMain(flow))
    assert session.anchorsNotConnectedToCallbacks([0, 1, 2]) == {}  # `total`: a dummy
    with pytest.raises(TypeError, match="expected a callback"):
        session.setCallbackForAnchor("d2h_total", 3)  # type: ignore[arg-type]
    session.setCallbackForAnchor("d2h_total", lambda m: saved.append(float(m[0, 0])))
    session.runLoadPrograms()
    session.runMainPrograms()
    session.runMainPrograms()
    session.runSavePrograms()
    assert (sums, saved) == ([2, 4], [4])
    session.runPrograms([flow.main()[0], flow.save()[0]])
    assert (sums, saved) == ([2, 4, 6], [4, 6])
    session.unloadFromDevice()  # saves
    assert saved == [4, 6, 6]


def test_unconnected_anchors(folder: Path, device: mr.Device) -> None:
    session = bound(folder / "accumulator.popef", device)
    missing = session.anchorsNotConnectedToCallbacks([0, 1, 2])
    assert {n: [a.name() for a in anchors] for n, anchors in missing.items()} == {
        1: ["increment", "sum"],
        2: ["total"],
    }
    with pytest.raises(Exception, match="increment"):
        session.errorIfAnchorsAreNotConnectedToCallbacks([1])
    session.errorIfAnchorsAreNotConnectedToCallbacks([0])
    with pytest.raises(Exception, match="increment"):
        session.runMainPrograms()


def test_data_of_the_user_instead_of_the_files(folder: Path, device: mr.Device) -> None:
    path = folder / "simple.popef"
    flow = model_of(path).metadata.programFlow()
    session = bound(
        path, device, pred_tensor_data=popef_data_usage.predProgramFlowLoad(flow)
    )
    names = [anchor.name() for anchor in session.getUserInputAnchors()]
    assert names == ["tensor_A", "tensor_B", "weights"]
    session.setUserInputHandler(lambda info: lambda memory: memory.fill(3))
    got: list[Array] = []
    session.setUserOutputHandler(lambda info: lambda memory: got.append(memory.copy()))
    session.runMainPrograms()
    assert (got[0] == 12).all()


def test_queues_of_the_main_programs(folder: Path, device: mr.Device) -> None:
    """As public clients make them: predicates of the main flow for both sides."""
    session = bound(folder / "accumulator.popef", device)
    flow = session.model().metadata.programFlow()
    main = anchor_callbacks.predProgramFlowMain(flow)
    sizes = mr.ring_size_multiplier_factory.ringSizeMultForMainProgs(session.model(), 2)
    queues = session.createQueueManager(sizes, None, 0, main, main)
    assert list(queues.inputs) == ["increment"]
    assert list(queues.outputs) == ["sum"]
    assert queues.inputQueue("increment").numBuffers() == 2 * build_popef.BATCH
    out = np.zeros(build_popef.SHAPE, np.float32)
    queues.inputQueue("increment").enqueue(np.ones(build_popef.SHAPE, np.float32))
    queues.outputQueue("sum").enqueue(out)
    assert session.runMainPrograms()
    assert (out == 1).all()
    session.runSavePrograms()  # into a dummy


def test_fused_models(folder: Path, device: mr.Device) -> None:
    session = bound(folder / "fused.popef", device)
    reads: list[str] = []

    def inputs(info: mr.CallbackInfo) -> Any:
        def fill(memory: Array) -> None:
            reads.append(info.anchor.name())
            memory[...] = 1

        return fill

    session.setUserInputHandler(inputs)
    session.setUserOutputHandler(lambda info: lambda memory: None)
    session.runMainPrograms()
    assert reads == ["index", "scale/input"]


def test_predicates() -> None:
    user, empty, skip = mr.AnchorCallbackPolicy
    flow = popef.ProgramFlow()
    flow.setLoad([0])
    flow.setMain([1])
    flow.setSave([2])

    def anchor(*programs: int, shape: tuple[int, ...] = (2,)) -> popef.Anchor:
        made = popef.Anchor()
        made.setName("x")
        made.setHandle("h2d_x")
        made.setPrograms(programs)
        made.tensorInfo().setShape(shape)
        return made

    factory = mr.predicate_factory
    cases = [
        (factory.anchor_callbacks.predProgramFlowLoad(flow), anchor(0), anchor(1)),
        (factory.predProgramFlowMain(flow), anchor(1), anchor(0, 2)),
        (factory.predProgramFlowSave(flow), anchor(2), anchor()),
        (factory.predProgramNotAssigned(), anchor(), anchor(1)),
        (factory.predNonScalarType(), anchor(), anchor(shape=())),
        (factory.predProgramIndexes([0, 2]), anchor(2), anchor(1)),
    ]
    for predicate, accepted, rejected in cases:
        assert predicate(accepted) is user
        assert predicate(rejected) is empty
    main, scalar = factory.predProgramFlowMain(flow), factory.predNonScalarType()
    both = factory.operators.andBind(user, skip, main, scalar)
    either = factory.anchor_callbacks.orBind(user, skip, main, scalar)
    assert (both(anchor(1)), both(anchor(0))) == (user, skip)
    assert (either(anchor(0)), either(anchor(0, shape=()))) == (user, skip)
    groups = factory.predProgramIndexes(
        [
            factory.ProgramsWithPolicy([1], skip),
            factory.ProgramsWithPolicy(policy=user, programsIndexes=[2]),
        ]
    )
    assert [groups(anchor(n)) for n in (0, 1, 2)] == [empty, skip, user]
    named = factory.predAnchorsPolicies(
        [factory.AnchorWithPolicy(anchor(), skip)], user
    )
    assert named(anchor(1)) is skip
    usage = factory.popef_data_usage.predProgramIndexes([1])
    assert usage(anchor(1)) is mr.PopefDataUsagePolicy.USE_USER_DATA
    assert usage(anchor(0)) is mr.PopefDataUsagePolicy.USE_POPEF_DATA_IF_ANY
    usage = factory.popef_data_usage.predProgramFlowMain(
        flow, reject_policy=mr.PopefDataUsagePolicy.USE_USER_DATA
    )
    assert usage(anchor(0)) is mr.PopefDataUsagePolicy.USE_USER_DATA
    assert mr.null_anchor_callback_predicate is None


def test_policies_of_another_kind_are_refused(folder: Path) -> None:
    callbacks = mr.predicate_factory.anchor_callbacks
    flow, anchor = popef.ProgramFlow(), popef.Anchor()
    user, skip = mr.AnchorCallbackPolicy.BIND_USER_CB, mr.AnchorCallbackPolicy.SKIP_CB
    wrong: Any = mr.PopefDataUsagePolicy.USE_USER_DATA
    calls: list[Callable[[], object]] = [
        lambda: callbacks.predProgramFlowMain(flow, wrong),
        lambda: callbacks.predNonScalarType(user, wrong),
        lambda: callbacks.orBind(user, wrong),
    ]
    for make in calls:
        with pytest.raises(TypeError, match="AnchorCallbackPolicy, got PopefData"):
            make()
    with pytest.raises(TypeError, match="expected ProgramFlow, got list"):
        callbacks.predProgramFlowMain([1])  # type: ignore[arg-type]
    # True is 1, which would pass for BIND_EMPTY_CB.
    truth: Any = lambda _: True  # noqa: E731 - what a caller would write
    with pytest.raises(TypeError, match="must return AnchorCallbackPolicy for"):
        callbacks.andBind(user, skip, truth)(anchor)
    session = mr.Session(str(folder / "simple.popef"))
    with pytest.raises(TypeError, match="must return AnchorCallbackPolicy for"):
        session.createQueueManager(8, None, 0, truth)


@pytest.mark.parametrize("factory", [3, lambda info: 3, lambda info: "x"])
def test_a_factory_of_nothing_to_call_is_refused(folder: Path, factory: Any) -> None:
    """Where it is given, and with nothing to call for the anchor that it names."""
    session = mr.Session(model_of(folder / "simple.popef"))
    for connect in (session.setUserInputHandler, session.setUserOutputHandler):
        with pytest.raises(TypeError, match=r"factory|anchor"):
            connect(factory)
