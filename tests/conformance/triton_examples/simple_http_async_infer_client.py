"""Several requests under way at once."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    url = parser.parse_args().url
    count = 8
    client = httpclient.InferenceServerClient(url=url, concurrency=count)
    in0 = np.arange(16, dtype=np.int32).reshape(1, 16)
    in1 = np.full((1, 16), -1, np.int32)
    inputs = [
        httpclient.InferInput("INPUT0", [1, 16], "INT32"),
        httpclient.InferInput("INPUT1", [1, 16], "INT32"),
    ]
    inputs[0].set_data_from_numpy(in0, binary_data=True)
    inputs[1].set_data_from_numpy(in1, binary_data=True)
    outputs = [
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=True),
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=True),
    ]
    requests = [
        client.async_infer("simple", inputs, outputs=outputs) for _ in range(count)
    ]
    for request in requests:
        result = request.get_result()
        if not (result.as_numpy("OUTPUT0") == in0 + in1).all():
            sys.exit("sync infer error: incorrect sum")
        if not (result.as_numpy("OUTPUT1") == in0 - in1).all():
            sys.exit("sync infer error: incorrect difference")
    print("PASS: async infer")


if __name__ == "__main__":
    main()
