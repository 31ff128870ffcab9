"""Tensors without elements, in every model that gives back what it gets."""

import argparse
import sys
from typing import Any

import numpy as np
import tritonclient.http as httpclient

SHAPES = ([1, 0], [0, 4], [0, 0], [3, 2])
MODELS = (
    ("onnx_zero_1_float32", 1, np.float32, 0),
    ("onnx_zero_1_float16", 1, np.float16, 1),
    ("onnx_zero_3_float32", 3, np.float32, 0),
    ("onnx_zero_1_object", 1, np.object_, 0),
)


def filled(dtype: Any, shape: Any) -> Any:
    if dtype is np.object_:
        words = [str(i).encode() for i in range(int(np.prod(shape)))]
        return np.array(words, np.object_).reshape(shape)
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def check(client: Any, model: str, count: int, array: Any, into: Any, out: Any) -> None:
    kind = httpclient.np_to_triton_dtype(array.dtype)
    names = range(count)
    tensors = [httpclient.InferInput(f"INPUT{i}", array.shape, kind) for i in names]
    for tensor in tensors:
        tensor.set_data_from_numpy(array, binary_data=into)
    wanted = [
        httpclient.InferRequestedOutput(f"OUTPUT{i}", binary_data=out) for i in names
    ]
    result = client.infer(model, tensors, outputs=wanted)
    if result.get_response()["model_name"] != model:
        sys.exit(f"FAILED: {result.get_response()}")
    for i in names:
        output = result.get_output(f"OUTPUT{i}")
        if (output["shape"], output["datatype"]) != (list(array.shape), kind):
            sys.exit(f"FAILED: {model}: {output}")
        found = result.as_numpy(f"OUTPUT{i}")
        if array.dtype == np.object_ and not out and array.size:
            found = np.vectorize(str.encode, otypes=[np.object_])(found)
        if not np.array_equal(found, array):
            sys.exit(f"FAILED: {model}: {found} instead of {array}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    with httpclient.InferenceServerClient(url=parser.parse_args().url) as client:
        for model, count, dtype, more in MODELS:
            for shape in SHAPES:
                array = filled(dtype, [*shape, *[2] * more])
                for out in (True, False):
                    check(client, model, count, array, True, out)
                    if dtype is not np.float16:  # the client sends it as bytes only
                        check(client, model, count, array, False, out)
    print("PASS: tensors without elements")


if __name__ == "__main__":
    main()
