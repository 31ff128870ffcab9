"""Sum and difference, plain and with every compression, binary and in JSON."""

import argparse
import sys
from typing import Any

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def infer(
    client: Any,
    in0: Any,
    in1: Any,
    request: Any = None,
    response: Any = None,
    headers: Any = None,
    model: str = "simple",
) -> Any:
    inputs = [
        httpclient.InferInput("INPUT0", [1, 16], "INT32"),
        httpclient.InferInput("INPUT1", [1, 16], "INT32"),
    ]
    # One as JSON and one as binary data.
    inputs[0].set_data_from_numpy(in0, binary_data=False)
    inputs[1].set_data_from_numpy(in1, binary_data=True)
    outputs = [
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=True),
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    return client.infer(
        model,
        inputs,
        outputs=outputs,
        query_params={"test_1": 1, "test_2": 2},
        headers=headers,
        request_compression_algorithm=request,
        response_compression_algorithm=response,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    url = parser.parse_args().url
    client = httpclient.InferenceServerClient(url=url)
    in0 = np.arange(16, dtype=np.int32).reshape(1, 16)
    in1 = np.full((1, 16), -1, np.int32)
    for request in (None, "gzip", "deflate"):
        for response in (None, "gzip", "deflate"):
            result = infer(client, in0, in1, request, response, {"test": "1"})
            if not (result.as_numpy("OUTPUT0") == in0 + in1).all():
                sys.exit(f"sum infer error: incorrect sum ({request}, {response})")
            if not (result.as_numpy("OUTPUT1") == in0 - in1).all():
                sys.exit("sub infer error: incorrect difference")
    statistics = client.get_inference_statistics(model_name="simple")
    if len(statistics["model_stats"]) != 1:
        sys.exit("FAILED: inference statistics")
    try:
        infer(client, in0, in1, model="wrong_model_name")
    except InferenceServerException as error:
        if not error.message().startswith("Request for unknown model"):
            sys.exit(f"improper error message for wrong model name: {error.message()}")
    else:
        sys.exit("expected error message for wrong model name")
    print("PASS: infer")


if __name__ == "__main__":
    main()
