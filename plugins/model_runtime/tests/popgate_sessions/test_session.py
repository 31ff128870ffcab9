"""Sessions: which programs run, and what their anchors are connected to.

Covers: plugins/model_runtime/src/popgate_sessions/connections.py,
plugins/model_runtime/src/popgate_sessions/session_config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import build_popef
import numpy as np
import pytest

from engine import (
    AnchorsNotConnected,
    Device,
    DeviceBusy,
    DeviceManager,
    DeviceWaitConfig,
    DeviceWaitTimeout,
    ExecutionFailed,
    InvalidConfig,
    InvalidInput,
    InvalidModel,
    NoDeviceAvailable,
    SessionClosed,
    UnknownAnchor,
)
from engine.devices.device_lock import try_claim
from popef_io import Anchor
from popgate_sessions import (
    AnchorCallbackPolicy,
    CallbackInfo,
    LaunchPolicy,
    PopefDataUsagePolicy,
    Session,
    SessionConfig,
    used_by_main,
    used_by_save,
)
from tests.engine import models

Array = np.ndarray[Any, Any]
SHAPE = build_popef.SHAPE
A = np.arange(12, dtype=np.float32).reshape(SHAPE)
USER, EMPTY, SKIP = AnchorCallbackPolicy


class Host:
    """Connects callbacks to a session: each input has its data, outputs are kept."""

    def __init__(self, **inputs: Any) -> None:
        self.inputs: dict[str, Any] = inputs
        self.calls: list[str] = []
        self.outputs: dict[str, list[Array]] = {}

    def input(self, info: CallbackInfo) -> Callable[[Array], Any] | None:
        return partial(self._fill, info.name) if info.name in self.inputs else None

    def output(self, info: CallbackInfo) -> Callable[[Array], Any]:
        return partial(self._keep, info.name)

    def connect(self, session: Session) -> None:
        session.set_user_input_handler(self.input)
        session.set_user_output_handler(self.output)

    def _fill(self, name: str, memory: Array) -> None:
        self.calls.append(name)
        memory[...] = self.inputs[name]

    def _keep(self, name: str, memory: Array) -> None:
        self.calls.append(name)
        self.outputs.setdefault(name, []).append(memory.copy())


@pytest.fixture
def open_session(shared_device: Device) -> Any:
    """`open_session(path, **options)`: bound to the shared device."""
    opened: list[Session] = []

    def open_one(source: Any, **options: Any) -> Session:
        session = Session(source, SessionConfig(**options))
        opened.append(session)
        session.bind_to_device(shared_device)
        return session

    yield open_one
    for session in opened:
        session.close()


# -- which programs run


def test_load_main_and_save_programs(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_accumulator(tmp_path))
    host = Host(increment=1)
    host.connect(session)
    assert session.run_load_programs()
    assert host.calls == []  # the file feeds `total`
    for count in (1, 2):
        assert session.run_main_programs()
        assert (host.outputs["sum"][-1] == count).all()
    assert session.run_save_programs()
    assert (host.outputs["total"][-1] == 2).all()
    assert session.run_load_programs()  # begins again
    assert session.run_main_programs()
    assert (host.outputs["sum"][-1] == 1).all()


def test_main_programs_load_first(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_accumulator(tmp_path))
    host = Host(increment=3)
    host.connect(session)
    assert session.run_main_programs()
    assert session.run_main_programs()  # not a second time
    assert (host.outputs["sum"][-1] == 6).all()


def test_chosen_programs_run_in_order(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_accumulator(tmp_path))
    host = Host(increment=1)
    host.connect(session)
    load, main, save = build_popef.LOAD, build_popef.MAIN, build_popef.SAVE
    with pytest.raises(ExecutionFailed, match="before it is written"):
        session.run_programs([main])
    host.calls.clear()
    assert session.run_programs([load, main, main, save, load, save])
    assert host.calls == ["increment", "sum", "increment", "sum", "total", "total"]
    assert [int(v[0, 0]) for v in host.outputs["total"]] == [2, 0]
    with pytest.raises(InvalidModel, match="no program 7"):
        session.run_programs([7])
    assert session.run_main_programs()  # the weights are loaded already
    assert (host.outputs["sum"][-1] == 1).all()


def test_only_what_is_read_is_asked_for(tmp_path: Path, open_session: Any) -> None:
    """Fused models: the selector decides whose anchors are used."""
    session = open_session(build_popef.build_fused(tmp_path))
    names = [a.name for a in session.user_input_anchors]
    assert names[0] == "index"
    host = Host(index=0, **dict.fromkeys(names[1:], 2))
    host.connect(session)
    assert session.run_main_programs()
    assert host.calls[0] == "index"
    assert sorted(host.calls[1:]) == ["sum/a", "sum/b", "sum/output"]
    assert (host.outputs["sum/output"][0] == 4).all()
    host.calls.clear()
    host.inputs["index"] = 1
    assert session.run_main_programs()
    assert host.calls == ["index", "scale/input", "scale/output"]
    assert np.allclose(host.outputs["scale/output"][0], 2 * build_popef.weights())
    host.inputs["index"] = 5
    with pytest.raises(ExecutionFailed, match="must be one of") as failed:
        session.run_main_programs()
    assert failed.value.callers_fault


def test_weights_from_several_files(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_split(tmp_path))
    host = Host(tensor_A=A)
    host.connect(session)
    assert session.run_main_programs()
    expected = A * build_popef.weights() + np.arange(build_popef.WIDTH)
    assert np.allclose(host.outputs["output"][0], expected)


def test_feeds_advance_and_wrap_round(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_feed(tmp_path))
    host = Host(tensor_A=1)
    host.connect(session)
    for _ in range(build_popef.FEED_LENGTH + 2):
        assert session.run_main_programs()
    seen = [int(out[0, 0]) for out in host.outputs["output"]]
    assert seen == [1, 101, 201, 301, 401, 1, 101]


# -- what anchors are connected to


def test_anchors_that_the_file_feeds(tmp_path: Path, open_session: Any) -> None:
    path = build_popef.build_simple(tmp_path)
    session = open_session(path)
    assert [a.name for a in session.input_anchors] == [
        "tensor_A",
        "tensor_B",
        "weights",
    ]
    assert [a.name for a in session.user_input_anchors] == ["tensor_A", "tensor_B"]
    assert [a.name for a in session.user_output_anchors] == ["output"]

    def mine(anchor: Anchor) -> PopefDataUsagePolicy:
        return PopefDataUsagePolicy(anchor.name == "weights")

    session = open_session(path, pred_tensor_data=mine)
    assert "weights" in [a.name for a in session.user_input_anchors]
    host = Host(tensor_A=A, tensor_B=1, weights=10)
    host.connect(session)
    assert session.run_main_programs()
    assert host.calls == ["weights", "tensor_A", "tensor_B", "output"]
    assert np.array_equal(host.outputs["output"][0], A * 10 + 1)


def test_a_callback_takes_the_place_of_the_files_data(
    tmp_path: Path, open_session: Any
) -> None:
    session = open_session(build_popef.build_feed(tmp_path))
    host = Host(tensor_A=1)
    host.connect(session)
    session.set_callback_for_anchor("h2d_offset", lambda memory: memory.fill(7))
    assert session.run_main_programs()
    assert (host.outputs["output"][0] == 8).all()
    with pytest.raises(UnknownAnchor, match="h2d_nothing"):
        session.set_callback_for_anchor("h2d_nothing", lambda memory: None)


def test_unconnected_anchors(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_accumulator(tmp_path))
    session.set_user_input_handler(
        Host(increment=1).input,
        lambda anchor: SKIP if anchor.name == "nothing" else USER,
    )
    main, save = build_popef.MAIN, build_popef.SAVE
    missing = session.anchors_not_connected_to_callbacks([0, main, save])
    assert {n: [a.name for a in anchors] for n, anchors in missing.items()} == {
        main: ["sum"],
        save: ["total"],
    }
    with pytest.raises(AnchorsNotConnected, match=r"program 1: 'sum'; program 2: 'tot"):
        session.error_if_anchors_are_not_connected_to_callbacks([0, main, save])
    session.error_if_anchors_are_not_connected_to_callbacks([0])
    with pytest.raises(AnchorsNotConnected, match="writes 'sum'"):
        session.run_main_programs()
    host = Host()
    session.set_user_output_handler(host.output)
    session.error_if_anchors_are_not_connected_to_callbacks([0, main, save])
    assert session.run_main_programs()  # the failed run has left it usable


def test_policies(tmp_path: Path, open_session: Any) -> None:
    """BIND_EMPTY_CB gives zeros and drops; SKIP_CB leaves things as they are."""
    session = open_session(build_popef.build_simple(tmp_path))
    host = Host(tensor_A=A, tensor_B=5)

    def policy(anchor: Anchor) -> AnchorCallbackPolicy:
        return {"tensor_A": USER, "tensor_B": EMPTY, "output": SKIP}[anchor.name]

    session.set_user_input_handler(host.input, policy)
    session.set_user_output_handler(host.output, policy)
    assert session.anchors_not_connected_to_callbacks([1]).keys() == {1}
    session.set_user_output_handler(host.output, lambda anchor: EMPTY)
    assert session.run_main_programs()
    assert host.calls == ["tensor_A"]
    # A dummy does not take the place of anything, but everything takes its.
    session.set_user_input_handler(host.input, lambda anchor: EMPTY)
    session.set_user_input_handler(host.input, skip_connected=True)
    session.set_user_output_handler(host.output, skip_connected=True)
    host.calls.clear()
    assert session.run_main_programs()
    assert host.calls == ["tensor_A", "tensor_B", "output"]
    assert np.allclose(host.outputs["output"][0], A * build_popef.weights() + 5)
    # Connected ones are skipped, and a factory may decline.
    other = Host(tensor_A=0)
    session.set_user_input_handler(other.input, skip_connected=True)
    session.set_user_input_handler(lambda info: None)
    assert session.run_main_programs()
    assert other.calls == []
    session.set_user_input_handler(other.input)
    assert session.run_main_programs()
    assert other.calls == ["tensor_A"]


def test_handlers_by_program(tmp_path: Path, open_session: Any) -> None:
    """Two handlers, each for its own programs, with the predicates' defaults."""
    session = open_session(build_popef.build_accumulator(tmp_path))
    flow = session.model.metadata.program_flow
    main, save = Host(increment=2), Host()
    session.set_user_input_handler(main.input)
    session.set_user_output_handler(main.output, used_by_main(flow, USER, EMPTY))
    session.set_user_output_handler(save.output, used_by_save(flow, USER, EMPTY))
    assert session.run_main_programs()
    assert session.run_save_programs()
    assert main.calls == ["increment", "sum"]
    assert save.calls == ["total"]


def test_what_a_callback_raises_ends_the_run(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_simple(tmp_path))
    host = Host(tensor_A=A, tensor_B=5)
    host.connect(session)

    def refuse(memory: Array) -> None:
        raise ZeroDivisionError("not today")

    session.set_callback_for_anchor("h2d_tensor_B", refuse)
    with pytest.raises(ZeroDivisionError, match="not today"):
        session.run_main_programs()
    session.set_callback_for_anchor("d2h_output", refuse)
    session.set_user_input_handler(host.input)
    with pytest.raises(ZeroDivisionError, match="not today"):
        session.run_main_programs()
    session.set_user_output_handler(host.output)
    assert session.run_main_programs()
    assert not session.is_stopped


def test_a_callback_cannot_run_programs(tmp_path: Path, open_session: Any) -> None:
    session = open_session(build_popef.build_feed(tmp_path))
    Host(tensor_A=1).connect(session)
    session.set_callback_for_anchor(
        "d2h_output", lambda memory: session.run_main_programs()
    )
    with pytest.raises(DeviceBusy, match="callback"):
        session.run_main_programs()


def test_shapes_that_only_the_host_knows(tmp_path: Path, open_session: Any) -> None:
    session = open_session(models.affine(tmp_path / "m.popef"))
    sent: list[Array] = []
    got: list[Array] = []

    def give(memory: Array) -> Array:
        assert memory.size == 0
        rows = 5000 if not sent else len(sent)
        sent.append(np.full((rows, 4), len(sent), np.float32))
        return sent[-1]

    session.set_callback_for_anchor("h2d_input", give)
    session.set_callback_for_anchor("d2h_output", lambda m: got.append(m.copy()))
    for _ in range(4):
        assert session.run_main_programs()
    for data, out in zip(sent, got, strict=True):
        assert np.array_equal(out, data * 2 + 1)
    for wrong in (None, np.zeros((2, 4)), np.zeros((2, 5), np.float32)):
        session.set_callback_for_anchor("h2d_input", lambda m, w=wrong: w)
        with pytest.raises(InvalidInput, match=r"F32\[\?, 4\]"):
            session.run_main_programs()


def test_strings(tmp_path: Path, open_session: Any) -> None:
    session = open_session(models.text(tmp_path / "m.popef"))
    got: list[list[bytes]] = []
    session.set_callback_for_anchor(
        "h2d_input", lambda m: np.array([b"ab", b"", b"\xc3\xa9"], dtype=object)
    )
    session.set_callback_for_anchor("d2h_output", lambda m: got.append(m.tolist()))
    assert session.run_main_programs()
    assert got == [[b"ab!", b"!", b"\xc3\xa9!"]]
    with pytest.raises(InvalidInput, match="STRING"):
        session.create_queue_manager()


@pytest.mark.parametrize("rows", [1, 9000])
def test_large_outputs_are_written_in_place(
    tmp_path: Path, open_session: Any, rows: int
) -> None:
    session = open_session(models.affine(tmp_path / "m.popef", batch_size=rows))
    data = np.random.default_rng(1).random((rows, 4), np.float32)
    got: list[Array] = []
    session.set_callback_for_anchor("h2d_input", lambda m: np.copyto(m, data))
    session.set_callback_for_anchor("d2h_output", lambda m: got.append(m.copy()))
    for _ in range(8):
        assert session.run_main_programs()
        assert np.array_equal(got.pop(), data * 2 + 1)


# -- how it is told


def test_an_immediate_session_attaches_a_device_itself(tmp_path: Path) -> None:
    config = SessionConfig(policy=LaunchPolicy.IMMEDIATE)
    with Session(build_popef.build_feed(tmp_path), config) as session:
        Host(tensor_A=1).connect(session)
        assert session.run_main_programs()
        device = session.device
    assert device is not None
    assert device.state.value == "closed"


def test_an_immediate_session_waits_as_it_is_told(tmp_path: Path) -> None:
    path = build_popef.build_feed(tmp_path)
    claims = [try_claim(unit) for unit in DeviceManager().units]
    try:
        with pytest.raises(NoDeviceAvailable):
            Session(path, SessionConfig(policy=LaunchPolicy.IMMEDIATE))
        wait = DeviceWaitConfig.with_timeout(0.05, sleep_time=0.01)
        with pytest.raises(DeviceWaitTimeout):
            Session(
                path, SessionConfig(policy=LaunchPolicy.IMMEDIATE, wait_config=wait)
            )
    finally:
        for claim in claims:
            if claim is not None:
                claim.close()


def test_the_digests_are_compared(tmp_path: Path, open_session: Any) -> None:
    path = models.affine(tmp_path / "m.popef", wrong_digest=True)
    with pytest.raises(InvalidModel, match="digest"):
        open_session(path)
    open_session(path, check_package_hash=False)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "all", "٣", 3, "1" * 11])
def test_max_look_ahead_is_checked(text: Any) -> None:
    with pytest.raises(InvalidConfig, match="max_look_ahead"):
        SessionConfig(max_look_ahead=text)


def test_an_unbound_session_runs_nothing(tmp_path: Path) -> None:
    with Session(build_popef.build_feed(tmp_path)) as session:
        for run in (
            session.run_load_programs,
            session.run_main_programs,
            session.run_save_programs,
            partial(session.run_programs, [1]),
            session.reload,
        ):
            with pytest.raises(SessionClosed, match="bind it to a device"):
                run()
        session.unload_from_device()
