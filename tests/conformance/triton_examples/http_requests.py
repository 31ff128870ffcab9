"""Requests that no client library sends: raw tensors, odd sizes, odd shapes."""

import argparse
import gzip
import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

import numpy as np

LIMIT = 64 << 20
HINT = f"{LIMIT} bytes. Use --http-max-input-size to increase the limit."
TOO_LARGE = f"exceeds the maximum allowed value of {HINT}"
TOO_LARGE_JSON = (
    f"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of "
    f"{HINT}"
)
HEADER_LENGTH = "Inference-Header-Content-Length"
CHUNKED = (
    "repository/index",
    "repository/models/simple/load",
    "trace/setting",
    "logging",
    "systemsharedmemory/region/none/register",
    "cudasharedmemory/region/none/register",
    "models/simple/infer",
    "models/simple/generate",
    "models/simple/generate_stream",
)


def connect(url: str) -> socket.socket:
    host, port = url.split(":")
    return socket.create_connection((host, int(port)))


def post(url: str, path: str, body: Any, **headers: str) -> Any:
    """Status, headers and bytes of an answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{url}/v2/{path}", body, named)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def raw(url: str, model: str, body: Any, **headers: str) -> Any:
    headers[HEADER_LENGTH] = "0"
    return post(url, f"models/{model}/infer", body, **headers)


def expect(answer: Any, status: int, text: str = "") -> None:
    code, _, body = answer
    if code != status or text not in body.decode("utf-8", "replace"):
        sys.exit(f"FAILED: {status} {text} expected, got {code} {body[:500]}")


def expect_bytes(answer: Any, wanted: bytes) -> None:
    code, headers, body = answer
    if code != 200:
        sys.exit(f"FAILED: {code} {body[:500]}")
    if body[int(headers["Inference-Header-Content-Length"]) :] != wanted:
        sys.exit(f"FAILED: other bytes came back than the {len(wanted)} that went")


def raw_tensors(url: str) -> None:
    floats = np.arange(32, dtype=np.float32).tobytes()
    expect_bytes(raw(url, "onnx_zero_1_float32", floats), floats)
    expect_bytes(raw(url, "onnx_zero_1_object_1_element", b"427"), b"\3\0\0\x00427")
    text = "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"
    expect(raw(url, "onnx_zero_1_object", b"427"), 400, text)
    text = (
        "The shape of the raw input 'INPUT0' can not be deduced because there are more "
        "than one variable-sized dimension"
    )
    expect(raw(url, "onnx_zero_1_float16", bytes(8)), 400, text)
    text = "Raw request must only have 1 input (found 1) to be deduced but got 3 inputs"
    expect(raw(url, "onnx_zero_3_float32", floats), 400, text)


def full_queue(url: str) -> None:
    """The model lets a request wait for a second, and only one at a time."""
    body = bytes(32)
    answers = []

    def ask() -> None:
        answers.append(raw(url, "onnx_zero_1_float32_queue", body)[0])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sorted(answers) != [200, 503]:
        sys.exit(f"FAILED: statuses of two requests to a queue of one: {answers}")


def sizes(url: str) -> None:
    """Just under the limit, and just above, plain and compressed."""
    model = "onnx_zero_1_float32"
    body = bytes(LIMIT - 128)
    expect_bytes(raw(url, model, body), body)
    packed = gzip.compress(body + bytes(256), 1)
    expect(raw(url, model, packed, Content_Encoding="gzip"), 400, TOO_LARGE)
    for binary, text in (("", TOO_LARGE_JSON), (f"{HEADER_LENGTH}: 0\r\n", TOO_LARGE)):
        with connect(url) as connection:
            head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {url}\r\n{binary}"
            connection.sendall(f"{head}Content-Length: {LIMIT + 1}\r\n\r\n".encode())
            answer = connection.makefile("rb").read().decode()
        if " 400 " not in answer.split("\r\n")[0] or text not in answer:
            sys.exit(f"FAILED: a body too large: {answer}")


def shapes(url: str) -> None:
    model = "models/onnx_zero_1_float32/infer"
    tensor: dict[str, object]
    for shape, status, text in (
        ([1, -4], 500, "Unable to parse 'shape': attempt to access JSON non-unsigned-"),
        ([1 << 31] * 3, 400, "causes total element count to exceed maximum size of"),
        ([1, 1 << 61], 400, "byte size overflow for input"),
        ([1, 1, 4], 400, "unexpected shape for input 'INPUT0' for model 'onnx_zero_1_"),
        ([9, 4], 400, "inference request batch-size must be <= 8"),
    ):
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": [0] * 4}
        expect(
            post(url, model, json.dumps({"inputs": [tensor]}).encode()), status, text
        )
    for depth, status in ((100, 200), (101, 400)):
        data = "[" * depth + "7" + "]" * depth
        tensor = {"name": "INPUT0", "datatype": "INT64", "shape": [1, 1], "data": 0}
        document = json.dumps({"inputs": [tensor]}).replace("0}", f"{data}}}")
        body = document.encode()
        text = '"data":[7]' if status == 200 else "JSON nesting depth exceeds maximum"
        expect(post(url, "models/simple_identity_int64/infer", body), status, text)
    nested = b'{"inputs":' + b"[" * 200 + b"]" * 200 + b"}"
    expect(post(url, model, nested), 400, "JSON nesting depth exceeds maximum allowed")
    missing = "models/none/infer"
    expect(post(url, missing, b"{}"), 400, "Request for unknown model: 'none' is not")


def many_chunks(url: str, count: int) -> None:
    """A body of many chunks of one byte, which is no JSON."""
    for path in CHUNKED:
        with connect(url) as connection:
            connection.sendall(
                f"POST /v2/{path} HTTP/1.1\r\nHost: {url}\r\n"
                "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
            )
            for _ in range(count // 1000):
                connection.sendall(b"1\r\nA\r\n" * 1000)
            connection.sendall(b"0\r\n\r\n")
            answer = connection.makefile("rb").read().decode()
        if "failed to parse the request JSON buffer: Invalid value. at 0" not in answer:
            sys.exit(f"FAILED: {path} with many chunks: {answer}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    parser.add_argument("-n", "--chunks", type=int, default=1_000_000)
    arguments = parser.parse_args()
    raw_tensors(arguments.url)
    full_queue(arguments.url)
    shapes(arguments.url)
    sizes(arguments.url)
    many_chunks(arguments.url, arguments.chunks)
    print("PASS: HTTP requests")


if __name__ == "__main__":
    main()
