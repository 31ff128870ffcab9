"""Measure how long the gateway decodes and encodes one request.

    python -m bench.codec [--seconds 0.3]

Prints microseconds for the bodies of the three standard models, in every encoding: S
(16 floats), M (784 floats in, 10 out), L (602 KB in and out). Each number is the best
of five rounds, on one thread; nothing is sent. The last column is decoding plus
encoding.
"""

from __future__ import annotations

import argparse
import io
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgpack
import numpy as np
import orjson

from app.codec import ModelCodec
from app.codec.messages import Body
from app.spec import ModelSpec, TensorSpec
from engine import Array, Tensor

ROUNDS = 5
CHUNK = 64 * 1024  # bytes in which a server hands over a large body


@dataclass(frozen=True, slots=True)
class Case:
    """One body and its headers."""

    name: str
    body: bytes
    header_length: bytes | None = None
    accept: bytes | None = None


def document(array: Array, data: object) -> dict[str, object]:
    return {"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": data}


def cases(array: Array) -> list[Case]:
    flat = [float(value) for value in array.ravel()]
    options = orjson.OPT_SERIALIZE_NUMPY
    text = orjson.dumps({"inputs": [document(array, array.ravel())]}, option=options)
    nested = orjson.dumps({"inputs": [document(array, array)]}, option=options)
    short = orjson.dumps({"inputs": {"x": array}}, option=options)
    tensor = document(array, None) | {"parameters": {"binary_data_size": array.nbytes}}
    del tensor["data"]
    parameters = {"binary_data_output": True}
    header = orjson.dumps({"inputs": [tensor], "parameters": parameters})
    packed = msgpack.packb({"inputs": [document(array, array.tobytes())]})
    listed = msgpack.packb({"inputs": [document(array, flat)]})
    npy = io.BytesIO()
    np.save(npy, array)
    return [
        Case("JSON", text),
        Case("JSON, nested", nested),
        Case("JSON, shorthand", short),
        Case("binary", header + array.tobytes(), str(len(header)).encode()),
        Case("raw", array.tobytes(), b"0"),
        Case("msgpack, bytes", packed),
        Case("msgpack, list", listed),
        Case("npy", npy.getvalue()),
        Case("npy to JSON", npy.getvalue(), accept=b"application/json"),
    ]


def microseconds(call: Callable[[], object], seconds: float) -> float:
    timer = timeit.Timer(call)
    number, took = timer.autorange()
    number = max(1, int(number * seconds / ROUNDS / max(took, 1e-9)))
    return min(timer.repeat(ROUNDS, number)) / number * 1e6


def chunks(body: bytes) -> Body:
    return [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    seconds: float = parser.parse_args().seconds
    random = np.random.default_rng(1)
    models: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        ("S", (1, 16), (1, 16)),
        ("M", (1, 784), (1, 10)),
        ("L", (1, 3, 224, 224), (1, 3, 224, 224)),
    ]
    print(f"{'':20}{'body':>10}{'decode':>10}{'encode':>10}{'both':>10}  (us)")
    for name, shape, out_shape in models:
        spec = ModelSpec(
            name,
            "1",
            (TensorSpec.make("x", "FP32", (-1, *shape[1:])),),
            (TensorSpec.make("y", "FP32", (-1, *out_shape[1:])),),
            64,
        )
        codec = ModelCodec(spec)
        array = random.standard_normal(shape, dtype=np.float32)
        result = {"y": Tensor.from_numpy(array.ravel()[: np.prod(out_shape)].copy())}
        result["y"].shape = out_shape
        for case in cases(array):
            arguments = (None, case.header_length, case.accept, chunks(case.body))
            request = codec.decode(*arguments)
            spent_in = microseconds(partial(codec.decode, *arguments), seconds)
            spent_out = microseconds(partial(codec.encode, request, result), seconds)
            print(
                f"{name + ' ' + case.name:20}{len(case.body):>10}{spent_in:>10.2f}"
                f"{spent_out:>10.2f}{spent_in + spent_out:>10.2f}"
            )


if __name__ == "__main__":
    main()
