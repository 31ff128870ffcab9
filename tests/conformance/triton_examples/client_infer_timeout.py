"""Clients that wait for less time, and for more, than a slow model takes."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.http as httpclient
import tritonclient.http.aio as aioclient
from tritonclient.utils import InferenceServerException

MODEL = "custom_identity_int32"  # takes three seconds
VALUE = np.array([[10]], np.int32)


def asked(library: Any) -> Any:
    tensor = library.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(VALUE)
    return [tensor]


def times_out(call: Callable[..., Any]) -> None:
    try:
        call()
    except Exception as error:
        if "timed out" not in str(error).lower():
            sys.exit(f"FAILED: {error!r}")
    else:
        sys.exit("FAILED: there was no time-out")


def impatient(url: str) -> None:
    with httpclient.InferenceServerClient(url=url, network_timeout=0.5) as client:
        times_out(lambda: client.infer(MODEL, asked(httpclient)))
        request = client.async_infer(MODEL, asked(httpclient))
        times_out(request.get_result)


def server_gives_up(url: str) -> None:
    """The request says in microseconds how long it may take."""
    with httpclient.InferenceServerClient(url=url) as client:
        try:
            client.infer(MODEL, asked(httpclient), timeout=200_000)
        except InferenceServerException as error:
            if error.message() != "Request timeout expired":
                sys.exit(f"FAILED: {error.message()}")
        else:
            sys.exit("FAILED: the server did not give up")


async def impatient_aio(url: str) -> None:
    async with aioclient.InferenceServerClient(url=url, conn_timeout=0.5) as client:
        try:
            await client.infer(MODEL, asked(aioclient))
        except TimeoutError:
            return
        sys.exit("FAILED: there was no time-out")


def patient(url: str) -> None:
    """Several at once: they are answered together."""
    with httpclient.InferenceServerClient(
        url=url, concurrency=3, network_timeout=30.0
    ) as client:
        requests = [client.async_infer(MODEL, asked(httpclient)) for _ in range(3)]
        for request in requests:
            if request.get_result().as_numpy("OUTPUT0").tolist() != VALUE.tolist():
                sys.exit("FAILED: another value came back")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    url = parser.parse_args().url
    impatient(url)
    server_gives_up(url)
    asyncio.run(impatient_aio(url))
    patient(url)
    print("PASS: time-outs")


if __name__ == "__main__":
    main()
