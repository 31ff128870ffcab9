"""The same objects with data in the request, then in shared memory, and again."""

import argparse
import os
import sys
from typing import Any

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import shared_memory as shm


def check(client: Any, inputs: Any, outputs: Any, in0: Any, in1: Any) -> None:
    results = client.infer("simple", inputs, outputs=outputs)
    if not (results.as_numpy("OUTPUT0") == in0 + in1).all():
        sys.exit("infer error: incorrect sum")
    if not (results.as_numpy("OUTPUT1") == in0 - in1).all():
        sys.exit("infer error: incorrect difference")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    client = httpclient.InferenceServerClient(url=parser.parse_args().url)
    in0 = np.arange(16, dtype=np.int32).reshape(1, 16)
    in1 = np.ones((1, 16), np.int32)
    size = in0.nbytes
    region = shm.create_shared_memory_region(
        "reuse_data", f"/reuse_simple_{os.getpid()}", size * 2
    )
    shm.set_shared_memory_region(region, [in0[0], in1[0]])
    client.register_system_shared_memory(
        "reuse_data", f"/reuse_simple_{os.getpid()}", size * 2
    )
    inputs = [
        httpclient.InferInput("INPUT0", [1, 16], "INT32"),
        httpclient.InferInput("INPUT1", [1, 16], "INT32"),
    ]
    outputs = [
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=True),
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    for _ in range(2):
        inputs[0].set_data_from_numpy(in0, binary_data=False)
        inputs[1].set_data_from_numpy(in1)
        check(client, inputs, outputs, in0, in1)
        inputs[0].set_shared_memory("reuse_data", size)
        inputs[1].set_shared_memory("reuse_data", size, offset=size)
        check(client, inputs, outputs, in0, in1)
    client.unregister_system_shared_memory("reuse_data")
    shm.destroy_shared_memory_region(region)
    print("PASS: reuse infer objects")


if __name__ == "__main__":
    main()
