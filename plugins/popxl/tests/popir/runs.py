"""One call for a program of a few operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import popxl
from popxl import ops

Array = np.ndarray[Any, Any]


def run(
    build: Callable[..., Any], *arrays: Any, kind: str = "ipu_model"
) -> list[Array]:
    """The results of `build`, over variables that hold `arrays`."""
    ir = popxl.Ir()
    with ir.main_graph:
        given = [popxl.variable(a, popxl.dtype.as_dtype(a.dtype)) for a in arrays]
        made = build(*given)
        results = list(made) if isinstance(made, tuple | list) else [made]
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in results]
        for stream, result in zip(streams, results, strict=True):
            ops.host_store(stream, result)
    with popxl.Session(ir, kind) as session:
        found = session.run()
    return [found[stream] for stream in streams]
