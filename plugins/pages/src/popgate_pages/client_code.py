"""A program that calls a model, ready to run: `/v1/models/NAME/client.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.api.examples import example_shapes
from app.spec import ModelSpec, TensorSpec, notation

_NUMPY = {
    "BOOL": "bool", "FP16": "np.float16", "FP32": "np.float32", "FP64": "np.float64",
    "BF16": "np.float32", "BYTES": "object",
}  # fmt: skip
#: The program contains the values of an input up to this number of elements. It reads
#: larger inputs from files.
_WRITTEN = 2_000

_PROGRAM = '''\
"""Calls the model {name} of {url}.

{tensors}

Needs Python 3.11 and the package popgate (`pip install .` in its sources).{notes}
"""

{imports}import numpy as np

from popgate import Client

inputs = {{
{inputs}
}}

{call}
        for name, array in outputs.items():
            print(name, outputs.datatypes[name], list(array.shape))
            print(array)
'''
_KEY = "\nThe server requires an API key: set POPGATE_KEY."
_TLS = """
For a certificate of your own authority set SSL_CERT_FILE; a client certificate is
Client(…, cert=("me.pem", "me.key"))."""
_ONE = """\
with Client({address}) as client:
    for outputs in [client.infer({model}, inputs{version})]:"""
_STREAM = """\
with Client({address}) as client:
    for outputs in client.stream({model}, inputs{version}):"""
_SEQUENCE = """\
with Client({address}) as client, client.sequence({model}{version}) as sequence:
    for outputs in [sequence(inputs), sequence(inputs, end=True)]:"""


def client_code(
    spec: ModelSpec,
    example: Mapping[str, Any] | None,
    fill: int,
    *,
    url: str,
    version: str = "",
    asks_key: bool = False,
    sequence: int | str | None = None,
    streams: bool = False,
) -> str:
    """Return the program, which sends the values that the model ran with at its load.

    `url` is the server's URL as the client reached it. `asks_key` is true if the server
    has keys. `sequence` is the id of a sequence, if requests belong to one. `streams`
    is true if a request may have any number of responses. `example` and `fill` are the
    same as for the other examples (`app/api/examples.py`).
    """
    given = example or {}
    shapes = example_shapes(spec, fill)
    inputs = [
        f"    {t.name!r}: {_value(t, shapes[t.name], given.get(t.name))},"
        for t in spec.inputs
    ]
    lines = [f"input  {_shown(t)}" for t in spec.inputs]
    lines += [f"output {_shown(t)}" for t in spec.outputs]
    named = f", sequence_id={sequence!r}" if isinstance(sequence, str) else ""
    form = _SEQUENCE if sequence else _STREAM if streams else _ONE
    key = ', api_key=os.environ["POPGATE_KEY"]' if asks_key else ""
    call = form.format(
        address=repr(url) + key,
        model=repr(spec.name),
        version=(f", version={version!r}" if version else "") + named,
    )
    return _PROGRAM.format(
        name=_text(spec.name),
        url=_text(url),
        tensors="\n".join(lines),
        inputs="\n".join(inputs),
        notes=(_KEY if asks_key else "") + (_TLS if url.startswith("https:") else ""),
        imports="import os\n\n" if asks_key else "",
        call=call,
    )


def _value(tensor: TensorSpec, shape: list[int], given: Any) -> str:
    dtype = _NUMPY.get(tensor.datatype, f"np.{tensor.datatype.lower()}")
    if given is not None and math.prod(shape) <= _WRITTEN:
        return f"np.array({given!r}, {dtype})"
    if tensor.datatype == "BYTES":
        return f"np.full({tuple(shape)}, '1', {dtype})"
    return f"np.ones({tuple(shape)}, {dtype})"


def _shown(tensor: TensorSpec) -> str:
    return _text(f"{tensor.name} {notation(tensor.datatype, tensor.shape)}")


def _text(text: str) -> str:
    """Escape any string for a docstring: names of models and tensors may contain
    anything.
    """
    safe = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return safe.replace("\\", "\\\\").replace('"', "'")
