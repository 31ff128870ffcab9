"""What is sent: whole requests of a model, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.cli.pairs import parse_pairs, parse_shapes
from app.cli.run_data import synthetic_array
from app.cli.tensors import read_value
from app.spec import DATATYPES
from popgate.client import Client, InvalidRequest, Tensor

#: Different requests that are sent in turn.
REQUESTS = 64


def prepared_requests(
    client: Client,
    name: str,
    version: str,
    inputs: Sequence[str] | None,
    shapes: Sequence[str] | None,
    batch: int,
) -> list[bytes]:
    """Whole requests, whose synthetic values differ. One is tried first."""
    metadata = client.metadata(name, version=version)
    takes = {i["name"]: (i["datatype"], i["shape"]) for i in metadata["inputs"]}
    given, wanted = parse_pairs(inputs, "--input"), parse_shapes(shapes)
    for named in (*given, *wanted):
        if named not in takes:
            raise InvalidRequest(f"no input {named!r}; {name} takes {', '.join(takes)}")
    fixed = {
        key: read_value(text, key, *takes[key]).array for key, text in given.items()
    }
    random = np.random.default_rng(0)
    made = []
    for number in range(REQUESTS if len(fixed) < len(takes) else 1):
        values: dict[str, Any] = dict(fixed)
        for key, (datatype, shape) in takes.items():
            if key in fixed:
                continue
            dims = [int(d) for d in wanted.get(key, ())] or [
                batch if at == 0 and dim < 0 else max(dim, 1)
                for at, dim in enumerate(shape)
            ]
            kind = DATATYPES[datatype].data_type
            array = synthetic_array(random, kind, tuple(dims))
            if datatype == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            values[key] = Tensor(key, datatype, array)
        if number == 0:
            client.infer(name, values, version=version)
        made.append(client.prepare(name, values, version=version))
    return made
