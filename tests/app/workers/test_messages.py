"""What is told of a model arrives as it was."""

from __future__ import annotations

import os
import socket

import msgpack
import numpy as np
import pytest

from app.spec import ModelSpec, TensorSpec
from app.workers.messages import MOST, SharedEntry, TooLong, close_all, receive, send
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
