"""What is refused about shared memory, and what a region outlives."""

import argparse
import os
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import gevent
import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

PAGE = 4096
KEY = f"/shm_errors_{os.getpid()}"


def refused(text: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    try:
        call(*arguments, **named)
    except InferenceServerException as error:
        if text not in error.message():
            sys.exit(f"FAILED: {text!r} is not in {error.message()!r}")
    else:
        sys.exit(f"FAILED: no error with {text!r}")


def inputs(size: int, offset: int = 64) -> Any:
    """The first from shared memory; the second as well, or in the request."""
    made = []
    for name, at in (("INPUT0", 0), ("INPUT1", offset)):
        tensor = httpclient.InferInput(name, [1, 16], "INT32")
        tensor.set_shared_memory("data", size if at else 64, offset=at)
        made.append(tensor)
    return made


def registering(client: Any) -> None:
    register = client.register_system_shared_memory
    status = client.get_system_shared_memory_status
    refused("Unable to open shared memory region", register, "x", "/no_such_key", 64)
    refused("Unable to find system shared memory region: 'x'", status, region_name="x")
    text = "failed to register shared memory region 'x': invalid args"
    refused(text, register, "x", KEY, PAGE + 1)
    refused(text, register, "x", KEY, 64, offset=PAGE * 256)
    refused(
        "Integer overflow detected: byte_size", register, "x", KEY, 1, (1 << 64) - 1
    )
    reserved = "/triton_python_backend_shm_region_0"
    refused("cannot register shared memory region", register, "x", reserved, 64)
    client.unregister_system_shared_memory("x")
    register("data", KEY, PAGE)
    refused("shared memory region 'data' already in manager", register, "data", KEY, 64)
    if [region["name"] for region in status()] != ["data"]:
        sys.exit(f"FAILED: status: {status()}")


def inferring(client: Any, in0: Any, in1: Any) -> None:
    infer = client.infer
    for size, offset, text in (
        (128, 64, "input byte size mismatch for input 'INPUT1' for model 'simple'."),
        (64, PAGE + 64, "Invalid offset for shared memory region"),
        (64, PAGE - 32, "Invalid offset + byte size for shared memory region"),
    ):
        refused(text, infer, "simple", inputs(size, offset))
    small = httpclient.InferRequestedOutput("OUTPUT0")
    small.set_shared_memory("data", 32, offset=128)
    refused("should be at least 64 bytes", infer, "simple", inputs(64), outputs=[small])
    mixed = inputs(64)
    mixed[1].set_data_from_numpy(in1)
    for tensors in (mixed, inputs(64)):
        result = infer("simple", tensors)
        if not (result.as_numpy("OUTPUT0") == in0 + in1).all():
            sys.exit("FAILED: incorrect sum")


def unregistering(url: str, client: Any) -> Any:
    """All regions stay until the last request that uses one of them has ended."""
    slow = "custom_identity_int32"
    tensor = httpclient.InferInput("INPUT0", [1, 16], "INT32")
    tensor.set_shared_memory("in", 64)
    wanted = httpclient.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("out", 64)
    client.register_system_shared_memory("in", KEY, 64)
    client.register_system_shared_memory("out", KEY, 64, offset=256)
    with httpclient.InferenceServerClient(url=url, concurrency=2) as other:

        def send() -> Any:
            return other.async_infer(slow, [tensor], outputs=[wanted])

        first = send()
        while not in_flight(url, slow):
            gevent.sleep(0.01)  # which lets the client send it
        client.unregister_system_shared_memory()
        names = {region["name"] for region in client.get_system_shared_memory_status()}
        if names != {"in", "out"}:
            sys.exit(f"FAILED: while a request uses both, status has {names}")
        second = send()
        for request in (first, second):
            request.get_result()
    if client.get_system_shared_memory_status():
        sys.exit("FAILED: still there after the last request")


def in_flight(url: str, model: str) -> Any:
    """Whether the model has a request that it has not answered."""
    with urllib.request.urlopen(f"http://{url}/metrics") as answer:
        text = answer.read().decode()
    return f'popgate_requests_in_flight{{model="{model}",version="1"}} 1' in text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    url = parser.parse_args().url
    client = httpclient.InferenceServerClient(url=url)
    client.unregister_system_shared_memory()
    in0 = np.arange(16, dtype=np.int32).reshape(1, 16)
    in1 = np.ones((1, 16), np.int32)
    region = shm.create_shared_memory_region("data", KEY, PAGE)
    try:
        shm.set_shared_memory_region(region, [in0[0], in1[0]])
        registering(client)
        inferring(client, in0, in1)
        client.unregister_system_shared_memory()
        unregistering(url, client)
        client.register_system_shared_memory("data", KEY, PAGE)
        client.unregister_system_shared_memory()
        if client.get_system_shared_memory_status():
            sys.exit("FAILED: unregistering")
        refused(
            "Unable to find shared memory region", client.infer, "simple", inputs(64)
        )
        refused(
            "GPUs not supported", client.register_cuda_shared_memory, "x", b"", 0, 64
        )
    finally:
        shm.destroy_shared_memory_region(region)
    print("PASS: shared memory errors")


if __name__ == "__main__":
    main()
