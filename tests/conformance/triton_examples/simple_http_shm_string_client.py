"""Strings in system shared memory."""

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
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    in0 = np.arange(16, dtype=np.int32)
    in1 = np.ones(16, np.int32)
    text0, text1 = (
        np.array([str(x).encode() for x in array], dtype=np.object_)
        for array in (in0, in1)
    )
    raw0, raw1 = utils.serialize_byte_tensor(text0), utils.serialize_byte_tensor(text1)
    size0, size1 = (utils.serialized_byte_size(raw) for raw in (raw0, raw1))
    out_size = max(size0, size1) + 1
    regions = []
    for name, key, size in (
        ("output0_data", f"/output0_string_{os.getpid()}", out_size),
        ("output1_data", f"/output1_string_{os.getpid()}", out_size),
        ("input0_data", f"/input0_string_{os.getpid()}", size0),
        ("input1_data", f"/input1_string_{os.getpid()}", size1),
    ):
        regions.append(shm.create_shared_memory_region(name, key, size))
        client.register_system_shared_memory(name, key, size)
    shm.set_shared_memory_region(regions[2], [raw0])
    shm.set_shared_memory_region(regions[3], [raw1])
    inputs = [
        httpclient.InferInput("INPUT0", [1, 16], "BYTES"),
        httpclient.InferInput("INPUT1", [1, 16], "BYTES"),
    ]
    inputs[0].set_shared_memory("input0_data", size0)
    inputs[1].set_shared_memory("input1_data", size1)
    outputs = [
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=True),
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=True),
    ]
    outputs[0].set_shared_memory("output0_data", out_size)
    outputs[1].set_shared_memory("output1_data", out_size)
    results = client.infer("simple_string", inputs, outputs=outputs)
    for index, name, expected in ((0, "OUTPUT0", in0 + in1), (1, "OUTPUT1", in0 - in1)):
        found = results.get_output(name)
        array = shm.get_contents_as_numpy(
            regions[index], utils.triton_to_np_dtype(found["datatype"]), found["shape"]
        )
        if [int(x) for x in array[0]] != expected.tolist():
            sys.exit(f"shm infer error: incorrect {name}")
    client.unregister_system_shared_memory()
    for region in regions:
        shm.destroy_shared_memory_region(region)
    print("PASS: system shared memory, strings")


if __name__ == "__main__":
    main()
