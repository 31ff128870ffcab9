"""What is told of a model arrives as it was."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import msgpack
import numpy as np
import pytest

from app.serving.ensemble_graph import EnsembleGraph, Face, Step
from app.spec import ModelSpec, TensorSpec
from app.workers.messages import (
    MOST,
    SharedEnsemble,
    SharedEntry,
    TooLong,
    close_all,
    receive,
    send,
)
from engine import RunnerDescription, Tensor
from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.tensor import DataDesc
from engine.transport.channel import ChannelLayout
from popef_io import DataType


def test_a_version_arrives_as_it_was() -> None:
    labels = TensorSpec("y", "FP32", DataType.F32, (-1, 3), ("a", "b", "c"), 2)
    default = Tensor.from_numpy(np.array([[1, 2]], np.float32))
    spec = ModelSpec(
        "m",
        "2",
        (TensorSpec.make("x", "FP32", (-1, 2)), TensorSpec.make("t", "BYTES")),
        (labels,),
        max_batch_size=8,
        max_rows=4,
        optional_inputs=True,
        defaults={"x": default},
    )
    runner = RunnerDescription(
        "m/2",
        (DataDesc("x", (-1, 2), DataType.F32),),
        (DataDesc("y", None, DataType.F32),),
        BatchPlan(0, 0, 1, 8, (AnchorRows("x"),), (AnchorRows("y"),)),
        ChannelLayout(4, (4096,), (4096,), (4096, 4096)),
        64,
        replicas=(("cpu:0#7", 3),),
    )
    entry = SharedEntry(5, 1, spec, runner, 1.5, None, {0: None, 1: 2.0})
    raw = msgpack.packb(entry.to_message())
    found = SharedEntry.from_message(msgpack.unpackb(raw, strict_map_key=False))
    assert (found.key, found.block, found.runner) == (5, 1, runner)
    assert (found.timeout, found.max_timeout) == (1.5, None)
    assert found.level_timeouts == {0: None, 1: 2.0}
    same = "name version inputs outputs max_batch_size max_rows optional_inputs"
    for attribute in same.split():
        assert getattr(found.spec, attribute) == getattr(spec, attribute)
    assert found.spec.defaults["x"].tobytes() == default.tobytes()
    assert found.spec.defaults["x"].shape == default.shape


def test_an_ensemble_arrives_as_it_was_and_knows_its_members() -> None:
    x, y = (TensorSpec.make(name, "FP32", (-1, 2)) for name in "xy")
    member = ModelSpec("m", "1", (x,), (y,), max_batch_size=8)
    step = Step("step 1 (m)", "m", 0, (("x", "a"),), (("y", "b"),), 0, ())
    whole = ModelSpec("e", "1", (x,), (y,), max_batch_size=8)
    faces = (Face("x", (-1, 2), None),), (Face("y", (-1, 2), (-1, 2)),)
    graph = EnsembleGraph(whole, (step,), *faces)
    entry = SharedEntry(6, 2, whole, SharedEnsemble(graph, (member,)))
    raw = msgpack.packb(entry.to_message())
    shared = SharedEntry.from_message(msgpack.unpackb(raw, strict_map_key=False)).runner
    assert isinstance(shared, SharedEnsemble)
    assert shared.graph.steps == (step,)
    assert (shared.graph.inputs, shared.graph.outputs) == faces
    assert shared.compose([member]) is shared.graph
    with pytest.raises(ValueError, match="other tensors"):
        shared.compose([replace(member, inputs=(y,))])


def test_messages_have_borders_descriptors_and_a_length() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        send(one, {"op": "a"}, [one.fileno()])
        send(one, {"op": "b", "text": "x" * (MOST // 2)})
        message, fds = receive(other)
        assert message == {"op": "a"}
        assert os.fstat(fds[0]).st_ino == os.fstat(one.fileno()).st_ino
        close_all(fds)
        assert receive(other)[0]["op"] == "b"
        with pytest.raises(TooLong):
            send(one, {"text": "x" * MOST})
        one.close()
        with pytest.raises(EOFError):
            receive(other)


@pytest.mark.parametrize(
    "raw", [b"\xc1", b"\x01", b"\x81\xa1x\xda\xff\xff", b"x" * MOST]
)
def test_a_damaged_message_is_refused_and_its_descriptors_closed(raw: bytes) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(one, [raw + b"x"], [one.fileno()])
        with pytest.raises(ValueError):  # noqa: PT011 - msgpack's own and ours
            receive(other)
        assert len(os.listdir("/proc/self/fd")) == before
