"""The simplest fast server one could write, to compare with.

Raw ASGI on uvicorn with uvloop and httptools, orjson, and `session.run` called in
the event loop: no validation, no limits, no metrics, no batching. It speaks the
same infer URL, in JSON and with the binary extension, and knows only FP32.
uvicorn runs with the settings of the gateway.

    python -m bench.servers.reference --models DIR --port P     # DIR holds NAME.onnx
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import orjson
import uvicorn

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")
HEADER_LENGTH = b"inference-header-content-length"


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a session with one thread, which is fastest for an unbatched small model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )


class Reference:
    """The ASGI application: `/v2/models/NAME/infer` and `/v2/health/ready`."""

    def __init__(self, sessions: dict[str, onnxruntime.InferenceSession]) -> None:
        self._routes = {
            f"/v2/models/{name}/infer": (name, session)
            for name, session in sessions.items()
        }

    async def __call__(
        self, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        route = self._routes.get(scope["path"])
        if route is None:
            status = 200 if scope["path"] == "/v2/health/ready" else 404
            await reply(send, status, b"{}", [JSON])
            return
        message = await receive()
        body = message["body"]
        if message.get("more_body"):
            chunks = [body]
            while message.get("more_body"):
                message = await receive()
                chunks.append(message["body"])
            body = b"".join(chunks)
        for key, value in scope["headers"]:
            if key == HEADER_LENGTH:
                content, headers = infer_binary(*route, body, int(value))
                break
        else:
            content, headers = infer_json(*route, body)
        await reply(send, 200, content, headers)


async def reply(
    send: Send, status: int, content: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    headers.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def infer_json(
    name: str, session: onnxruntime.InferenceSession, body: bytes
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    document = orjson.loads(body)
    feeds = {
        each["name"]: np.array(each["data"], np.float32).reshape(each["shape"])
        for each in document["inputs"]
    }
    outputs = [
        {"name": meta.name, "datatype": "FP32", "shape": y.shape, "data": y.ravel()}
        for meta, y in zip(session.get_outputs(), session.run(None, feeds), strict=True)
    ]
    answer = {"model_name": name, "model_version": "1", "outputs": outputs}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), [JSON]


def infer_binary(
    name: str, session: onnxruntime.InferenceSession, body: bytes, header: int
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    document = orjson.loads(body[:header])
    feeds, offset = {}, header
    for each in document["inputs"]:
        size = each["parameters"]["binary_data_size"]
        values = np.frombuffer(body, np.float32, size // 4, offset)
        feeds[each["name"]] = values.reshape(each["shape"])
        offset += size
    outputs, parts = [], []
    for meta, y in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        parts.append(y.tobytes())
        parameters = {"binary_data_size": y.nbytes}
        outputs.append(
            {
                "name": meta.name,
                "datatype": "FP32",
                "shape": y.shape,
                "parameters": parameters,
            }
        )
    head = orjson.dumps({"model_name": name, "model_version": "1", "outputs": outputs})
    length = (HEADER_LENGTH, str(len(head)).encode())
    return b"".join([head, *parts]), [BINARY, length]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    sessions = {path.stem: open_session(path) for path in args.models.glob("*.onnx")}
    uvicorn.run(
        Reference(sessions),
        host=args.host,
        port=args.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        lifespan="off",
        server_header=False,
    )


if __name__ == "__main__":
    main()
