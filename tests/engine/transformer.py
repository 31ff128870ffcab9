"""A text classifier as exporters of transformers write it, small."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engine.onnx_models import FLOAT, INT64, floats, node, onnx_model, value

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WIDTH = 16


def transformer(*batches: str) -> Any:
    """One layer of attention over texts of any length.

    `batches` are names of the first dimensions of the inputs, `batch` by default; then
    lengths have names of their own as well.
    """
    named = [(batch, f"{batch}_length") for batch in batches]
    dims = named or [("batch", "sequence")] * 3
    nodes = [
        node("Gather", ["words", "input_ids"], ["e1"]),
        node("Gather", ["types", "token_type_ids"], ["e2"]),
        node("Shape", ["input_ids"], ["shape"]),
        node("Gather", ["shape", "1"], ["length"], axis=0),
        node("Range", ["0", "length", "1"], ["places"]),
        node("Gather", ["positions", "places"], ["e3"]),
        node("Add", ["e1", "e2"], ["e4"]),
        node("Add", ["e4", "e3"], ["e5"]),
        node("LayerNormalization", ["e5", "scale", "bias"], ["x"], axis=-1),
        node("Unsqueeze", ["attention_mask", "axes"], ["m1"]),
        node("Cast", ["m1"], ["m2"], to=FLOAT),
        node("Sub", ["one", "m2"], ["m3"]),
        node("Mul", ["m3", "far"], ["mask"]),
        *projections(),
        node("MatMul", ["q3", "k3"], ["s1"]),
        node("Add", ["s1", "mask"], ["s2"]),
        node("Softmax", ["s2"], ["s3"], axis=-1),
        node("MatMul", ["s3", "v3"], ["o1"]),
        node("Transpose", ["o1"], ["o2"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o2", "join"], ["o3"]),
        node("Add", ["o3", "x"], ["last"]),
        node("Gather", ["last", "0"], ["first"], axis=1),
        node("MatMul", ["first", "classes"], ["logits"]),
    ]
    return onnx_model(
        nodes,
        [value(name, INT64, list(d)) for name, d in zip(INPUTS, dims, strict=True)],
        [
            value("last", FLOAT, [*dims[0], WIDTH]),
            value("logits", FLOAT, [dims[0][0], 3]),
        ],
        weights(),
    )


def projections() -> list[Any]:
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}1"]),
            node("Reshape", [f"{name}1", "split"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [f"{name}3"], perm=perm),
        ]
    return nodes


def weights() -> dict[str, Any]:
    return {
        "words": floats(50, WIDTH),
        "types": floats(2, WIDTH, seed=1),
        "positions": floats(64, WIDTH, seed=2),
        "scale": np.ones(WIDTH, np.float32),
        "bias": np.zeros(WIDTH, np.float32),
        **{f"w{n}": floats(WIDTH, WIDTH, seed=3 + i) for i, n in enumerate("qkv")},
        "classes": floats(WIDTH, 3, seed=6),
        "split": np.array([0, 0, 2, 8]),
        "join": np.array([0, 0, WIDTH]),
        "0": np.int64(0),
        "1": np.int64(1),
        "axes": np.array([1, 2]),
        "one": np.float32(1),
        "far": np.float32(-1e4),
    }


def texts(seed: int, rows: int, length: int) -> dict[str, Any]:
    """Inputs of that many texts; the mask ends some of them early."""
    random = np.random.default_rng(seed)
    ends = random.integers(1, length + 1, (rows, 1))
    return {
        "input_ids": random.integers(0, 50, (rows, length)),
        "attention_mask": (np.arange(length) < ends).astype(np.int64),
        "token_type_ids": random.integers(0, 2, (rows, length)),
    }
