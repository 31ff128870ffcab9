"""Drive an infer URL with many connections: wrk where it is, else our own client.

Both keep each connection busy with one request after the other and count answers,
latencies and everything that was not a 200.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import numpy as np

from bench.payloads import Payload

#: Posts one body for ever; at the end prints what `Load` needs as one line of JSON.
WRK_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
{headers}
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "not_ok": %d, ' ..
    '"broken": %d}}\\n', summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6, e.status,
    e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """Result of one run. Latencies in seconds; `broken` counts socket errors."""

    requests: int
    seconds: float
    p50: float
    p99: float
    not_ok: int
    broken: int

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds else 0.0


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def drive(
    url: str, payload: Payload, connections: int, seconds: float, *, wrk: bool
) -> Load:
    """Keep `connections` busy with `payload` for `seconds`. A process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder, "body")
        body.write_bytes(payload.body)
        command = (_wrk if wrk else _ours)(url, payload, connections, seconds, body)
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds + 60,
        )
    return Load(**json.loads(done.stdout.splitlines()[-1]))


def _wrk(
    url: str, payload: Payload, connections: int, seconds: float, body: Path
) -> list[str]:
    headers = "\n".join(
        f'wrk.headers["{name}"] = "{value}"' for name, value in payload.headers.items()
    )
    script = body.with_name("post.lua")
    script.write_text(WRK_SCRIPT.format(body=body, headers=headers))
    # wrk takes whole seconds only.
    duration = f"{max(1, round(seconds))}s"
    return [
        "wrk", "-t1", f"-c{connections}", f"-d{duration}", "--timeout", "30s",
        "-s", str(script), url,
    ]  # fmt: skip


def _ours(
    url: str, payload: Payload, connections: int, seconds: float, body: Path
) -> list[str]:
    headers = json.dumps(dict(payload.headers))
    return [
        sys.executable, "-m", "bench.load",
        url, str(connections), str(seconds), str(body), headers,
    ]  # fmt: skip


class _Connection(asyncio.Protocol):
    """One keep-alive connection that posts the same request again and again."""

    def __init__(self, request: bytes, state: _State) -> None:
        self.request = request
        self.state = state
        self.transport: asyncio.Transport | None = None
        self.head = b""
        self.missing = -1  # bytes of the body still to come; -1: reading the head
        self.ok = True
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no base
        self.post()

    def post(self) -> None:
        assert self.transport is not None
        self.sent = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.missing < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.head[:end].lower()
            self.ok = head.startswith(b"http/1.1 200")
            at = head.index(b"\r\ncontent-length:") + len(b"\r\ncontent-length:")
            size = int(head[at:].split(b"\r\n", 1)[0])
            self.missing = size - (len(self.head) - end - 4)
            self.head = b""
        else:
            self.missing -= len(data)
        if self.missing == 0:
            self.missing = -1
            self.state.not_ok += not self.ok
            self.state.latencies.append(time.perf_counter() - self.sent)
            if not self.state.over:
                self.post()

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.broken += not self.state.over


class _State:
    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.not_ok = 0
        self.broken = 0
        self.over = False


async def _drive(
    url: str, connections: int, seconds: float, body: bytes, headers: dict[str, str]
) -> Load:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    request = "\r\n".join(lines).encode() + body
    state = _State()
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: _Connection(request, state), host, port)
    await asyncio.sleep(seconds)
    state.over = True
    took = time.perf_counter() - started
    p50, p99 = np.percentile(state.latencies or [0.0], [50, 99])
    return Load(
        len(state.latencies), took, float(p50), float(p99), state.not_ok, state.broken
    )


def main(url: str, connections: str, seconds: str, body: str, headers: str) -> None:
    import uvloop

    load = uvloop.run(
        _drive(
            url,
            int(connections),
            float(seconds),
            Path(body).read_bytes(),
            json.loads(headers),
        )
    )
    print(json.dumps(asdict(load)))


if __name__ == "__main__":
    main(*sys.argv[1:])
