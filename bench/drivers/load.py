"""Drive an infer URL with many connections: by wrk if installed, else by our own
client.

Both keep each connection busy with one request after the other, and count answers,
latencies and everything that was not a 200. The requests are made beforehand, as bytes.
Each free connection takes the next one.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from bench.cases.payloads import Payload
from popgate_tools.perf.load import closed_loop

#: Sends the requests in turn; at the end prints the fields of `Load` as a line of JSON.
WRK_SCRIPT = """
local file = assert(io.open("{file}", "rb"))
local requests, last = {{}}, 0
for _, size in ipairs({{{sizes}}}) do
  requests[#requests + 1] = file:read(size)
end
file:close()
request = function()
  last = last % #requests + 1
  return requests[last]
end
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
    """Result of one run.

    Latencies in seconds; `broken` counts socket errors; `client` is the share of a core
    that the client used.
    """

    requests: int
    seconds: float
    p50: float
    p99: float
    not_ok: int
    broken: int
    client: float = 0.0

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds else 0.0


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Whole HTTP requests, one behind the other in a file."""

    file: Path
    sizes: tuple[int, ...]


@contextmanager
def prepared(path: str, payloads: Iterable[Payload]) -> Iterator[Prepared]:
    """Return the requests that post `payloads` to `path` of any server, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = []
        place = Path(folder, "requests")
        with place.open("wb") as file:
            for payload in payloads:
                request = whole(path, payload)
                sizes.append(len(request))
                file.write(request)
        yield Prepared(place, tuple(sizes))


def whole(path: str, payload: Payload) -> bytes:
    """Return the request with its head."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in payload.headers.items()]
    lines += [f"Content-Length: {len(payload.body)}", "", ""]
    return "\r\n".join(lines).encode() + payload.body


def drive(
    url: str, requests: Prepared, connections: int, seconds: float, *, wrk: bool
) -> Load:
    """Keep `connections` to the server at `url` busy with `requests` for `seconds`.

    The client is a process of its own.
    """
    command = (_wrk if wrk else _ours)(url, requests, connections, seconds)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + 60,
    )
    load = Load(**json.loads(done.stdout.splitlines()[-1]))
    if not wrk:
        return load  # our client counts its own time, without its start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return replace(load, client=used / load.seconds if load.seconds else 0.0)


def _wrk(url: str, requests: Prepared, connections: int, seconds: float) -> list[str]:
    script = requests.file.with_name("post.lua")
    sizes = ", ".join(map(str, requests.sizes))
    script.write_text(WRK_SCRIPT.format(file=requests.file, sizes=sizes))
    # wrk takes whole seconds only.
    duration = f"{max(1, round(seconds))}s"
    return [
        "wrk", "-t1", f"-c{connections}", f"-d{duration}", "--timeout", "30s",
        "-s", str(script), url,
    ]  # fmt: skip


def _ours(url: str, requests: Prepared, connections: int, seconds: float) -> list[str]:
    return [
        sys.executable, "-m", "bench.drivers.load", url, str(connections), str(seconds),
        str(requests.file), json.dumps(requests.sizes),
    ]  # fmt: skip


async def _drive(
    url: str, connections: int, seconds: float, requests: list[bytes]
) -> Load:
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    run = await closed_loop(address, requests, connections, seconds)
    p50, p99 = np.percentile(run.latencies or [0.0], [50, 99])
    count = run.count + run.not_ok
    return Load(
        count, run.seconds, float(p50), float(p99), run.not_ok, run.broken, run.cpu
    )


def main(url: str, connections: str, seconds: str, file: str, sizes: str) -> None:
    import uvloop

    with open(file, "rb") as source:
        requests = [source.read(size) for size in json.loads(sizes)]
    load = uvloop.run(_drive(url, int(connections), float(seconds), requests))
    print(json.dumps(asdict(load)))


if __name__ == "__main__":
    main(*sys.argv[1:])
