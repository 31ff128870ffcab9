"""Inputs and outputs in system shared memory."""

import argparse
import os
import sys

import numpy as np
import tritonclient.http as httpclient
from tritonclient import utils
from tritonclient.utils import shared_memory as shm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    client = httpclient.InferenceServerClient(url=parser.parse_args().url)
    # To make sure that no region is left of an earlier run.
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    in0 = np.arange(16, dtype=np.int32)
    in1 = np.ones(16, np.int32)
    size = in0.size * in0.itemsize
    output_key = f"/output_simple_{os.getpid()}"
    input_key = f"/input_simple_{os.getpid()}"
    output = shm.create_shared_memory_region("output_data", output_key, size * 2)
    client.register_system_shared_memory("output_data", output_key, size * 2)
    data = shm.create_shared_memory_region("input_data", input_key, size * 2)
    shm.set_shared_memory_region(data, [in0])
    shm.set_shared_memory_region(data, [in1], offset=size)
    client.register_system_shared_memory("input_data", input_key, size * 2)
    inputs = [
        httpclient.InferInput("INPUT0", [1, 16], "INT32"),
        httpclient.InferInput("INPUT1", [1, 16], "INT32"),
    ]
    inputs[0].set_shared_memory("input_data", size)
    inputs[1].set_shared_memory("input_data", size, offset=size)
    outputs = [
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=True),
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    outputs[0].set_shared_memory("output_data", size)
    outputs[1].set_shared_memory("output_data", size, offset=size)
    results = client.infer("simple", inputs, outputs=outputs)
    for name, offset, expected in (
        ("OUTPUT0", 0, in0 + in1),
        ("OUTPUT1", size, in0 - in1),
    ):
        found = results.get_output(name)
        if found is None:
            sys.exit(f"{name} is missing in the response.")
        array = shm.get_contents_as_numpy(
            output,
            utils.triton_to_np_dtype(found["datatype"]),
            found["shape"],
            offset=offset,
        )
        if not (array[0] == expected).all():
            sys.exit(f"shm infer error: incorrect {name}")
    if len(client.get_system_shared_memory_status()) != 2:
        sys.exit("FAILED: status of shared memory")
    client.unregister_system_shared_memory()
    if client.get_system_shared_memory_status():
        sys.exit("FAILED: unregistering")
    shm.destroy_shared_memory_region(data)
    shm.destroy_shared_memory_region(output)
    print("PASS: system shared memory")


if __name__ == "__main__":
    main()
