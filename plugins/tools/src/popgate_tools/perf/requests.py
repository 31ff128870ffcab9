"""Requests to send: whole requests of a model, as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from app.cli.pairs import parse_pairs, parse_shapes
from app.spec import DATATYPES
from popgate_client import Client, InvalidRequest, Tensor
from popgate_tools.asking import (
    AskedModel,
    RequestOptions,
    ask_model,
    sequence_parameters,
)
from popgate_tools.synthetic import MAX_ELEMENTS, synthetic_array
from popgate_tools.tensors import read_value

#: Different requests that are sent in turn.
REQUESTS = 64


def prepared_requests(
    client: Client,
    name: str,
    inputs: Sequence[str] | None,
    shapes: Sequence[str] | None,
    batch: int,
    *,
    model: AskedModel | None = None,
    request: RequestOptions | None = None,
    in_flight: int = 1,
) -> Sequence[bytes]:
    """Return complete requests, whose synthetic values differ. One is sent first, as a
    check.

    If the model has sequences, each request is a sequence of its own, and there are
    more than twice as many requests as are in flight.
    """
    request = request or RequestOptions()
    model = model or ask_model(client, name, request.version)
    makes = _Values(model, inputs, shapes, batch)
    alone = model.has_sequences and not request.is_sequence
    count = REQUESTS if makes.differ or alone else 1
    if alone:
        count = max(count, 2 * in_flight + 1)
    made = []
    for number in range(count):
        values = makes.next()
        options: dict[str, Any] = {
            "version": request.version, "parameters": request.all_parameters(),
        }  # fmt: skip
        if alone:
            said = sequence_parameters(1 + number, start=True, end=True)
            options["parameters"] |= said
        if number == 0:
            _try(client, model, values, options)
        made.append(client.prepare(name, values, stream=model.streams, **options))
    return made


def _try(
    client: Client, model: AskedModel, values: Any, options: dict[str, Any]
) -> None:
    if not model.streams:
        client.infer(model.name, values, **options)
        return
    for _ in client.stream(model.name, values, **options):
        pass


class _Values:
    """Yield the inputs of one request after the other. `differ`: some are synthetic."""

    def __init__(
        self,
        model: AskedModel,
        inputs: Sequence[str] | None,
        shapes: Sequence[str] | None,
        batch: int,
    ) -> None:
        given, self._wanted = parse_pairs(inputs, "--input"), parse_shapes(shapes)
        takes = model.inputs
        for named in (*given, *self._wanted):
            if named not in takes:
                known = ", ".join(takes)
                raise InvalidRequest(f"no input {named!r}; {model.name} takes {known}")
        self._fixed = {
            key: read_value(text, key, *takes[key]).array for key, text in given.items()
        }
        # If some inputs are given, optional ones are left out.
        optional = model.optional if given else frozenset[str]()
        self._made = {
            key: spec
            for key, spec in takes.items()
            if key not in given and (key not in optional or key in self._wanted)
        }
        self.differ = bool(self._made)
        self._batch = batch
        self._random = np.random.default_rng(0)

    def next(self) -> dict[str, Any]:
        """Return the inputs of the next request."""
        made = {key: self._synthetic(key, *spec) for key, spec in self._made.items()}
        return {**self._fixed, **made}

    def _synthetic(self, key: str, datatype: str, shape: list[int]) -> Tensor:
        dims = self._wanted.get(key) or tuple(
            dim if dim >= 0 else self._batch if at == 0 else 1
            for at, dim in enumerate(shape)
        )
        sizes = tuple(dim for dim in dims if isinstance(dim, int) and dim >= 0)
        if sizes != dims:
            shown = ",".join(map(str, dims))
            raise InvalidRequest(f"--shape {key}={shown}: expected sizes, as in 1,3")
        kind = DATATYPES[datatype].data_type
        if (count := math.prod(sizes)) > MAX_ELEMENTS:
            msg = f"input {key} would have {count} elements; set fewer"
            raise InvalidRequest(f"{msg} with --batch or --shape")
        array = synthetic_array(self._random, kind, sizes)
        if datatype == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return Tensor(key, datatype, array)
