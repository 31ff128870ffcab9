"""Loads and stores of streams."""

from __future__ import annotations

from typing import NoReturn

from popxl import context
from popxl.graph import Graph
from popxl.ops.shapes import init
from popxl.ops.utils import check_inputs, emit, emit_op
from popxl.streams import DeviceToHostStream, HostToDeviceStream
from popxl.tensor import Tensor


def host_load(h2d_stream: HostToDeviceStream, name: str | None = None) -> Tensor:
    """Return the next data of the stream."""
    base = name or h2d_stream._tensor.name
    start = init(h2d_stream.shape, h2d_stream.dtype, f"{base}_init", init_type="undef")
    attributes = {"stream": h2d_stream._tensor._below}
    made = emit("HostLoad", {"t": start}, [f"{base}_hostload"], attributes)[0]
    h2d_stream._stream.uses += 1
    return made


def host_store(d2h_stream: DeviceToHostStream, t: Tensor) -> None:
    """Send `t` through the stream."""
    check_inputs(t=t)
    if t.dtype is not d2h_stream.dtype:
        raise ValueError(
            f"The stream has type {d2h_stream.dtype}, the tensor {t.dtype}"
        )
    if t.shape != d2h_stream.shape:
        raise ValueError(
            f"The stream has shape {d2h_stream.shape}, the tensor {t.shape}"
        )
    attributes = {"stream": d2h_stream._tensor._below}
    emit_op("HostStore", {"t": t}, [], attributes)
    d2h_stream._stream.uses += 1


def code_copy(graph: Graph, source: str, destination: str) -> NoReturn:
    """Raise NotImplementedError, as the original does."""
    raise NotImplementedError("code_copy is not supported")


def remote_code_load(graph: Graph, destination: str) -> None:
    """Accept the call without effect, because code is always on the device."""
    if graph == context.get_current_graph():
        raise ValueError(
            "The remote_code_load op cannot load the code of the graph it is in: "
            f"{graph.id!r}"
        )
    if destination != "executable":
        raise NotImplementedError(
            f"destination {destination!r}: only 'executable' is supported"
        )
    emit_op("RemoteCodeLoad", {}, [], {"graph": graph._below})
