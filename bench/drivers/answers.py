"""Send good and bad requests at once: does the server count each answer once?

    python -m bench.drivers.answers
    python -m bench.drivers.answers --requests 5000 --workers 1

Serves one model with keys, sends a mixed load over several connections and compares
`popgate_http_responses_total` with what the clients saw, by route, status, error code
and key.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from app.observe.answers import GONE
from bench.cases.models import write_models
from bench.cases.scenarios import SCENARIOS, Mode
from bench.servers.server import HOST, Server, compile_models, gateway

#: Route, status, error code and key, as the metric has them.
Answer: TypeAlias = tuple[str, str, str, str]

#: The name of each key is the key.
KEYS = 'anonymous = ["metadata", "metrics"]\n' + "\n".join(
    f"""[[key]]
name = "{name}"
sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"
{more}"""
    for name, more in (
        ("shop", ""),
        ("desk", 'groups = ["infer", "metadata", "pages"]'),
        ("narrow", 'models = ["nothing-*"]'),
        ("limited", "requests_per_second = 0.01"),
    )
)
OPTIONS = ("--max-body-size", "64KiB", "--header-timeout", "1")
#: Seconds without a byte after which a client gives up. No request takes so long.
PATIENCE = 60.0
_SAMPLE = re.compile(r"^popgate_http_responses_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Kind:
    """A request, its route, the key that its answer counts for, and how often it is
    sent.

    If `leaves` is true, the client disconnects in the middle of its body.
    """

    raw: bytes
    route: str
    key: str
    weight: float = 0.5
    leaves: bool = False


def kinds(model: str, body: bytes) -> list[Kind]:
    """Return the requests of the load: `body` is a JSON one that `model` answers."""
    path = f"/v1/models/{model}/infer"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    by_shop = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: shop\r\n".encode()
    return [
        Kind(_post(path, "shop", body), "infer", "shop", 60),
        Kind(_post(path, "desk", body), "infer", "desk", 20),
        Kind(
            by_shop + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
            "infer", "shop", 5,
        ),
        Kind(_get("/v1/health/live"), "health", "other", 3),
        Kind(_get("/v1/models"), "metadata", "other"),
        Kind(_get("/v1/models", "desk"), "metadata", "desk"),
        Kind(_get("/v1/models/unknown"), "metadata", "other"),
        Kind(_get("/wp-login.php", "desk"), "pages", "desk"),
        Kind(_get("/wp-login.php"), "pages", "other"),
        Kind(_post("/v2/repository/index", "shop", b"{}"), "metadata", "shop"),
        Kind(_post("/v1/drain", "shop", b""), "manage", "shop"),
        Kind(_post(path, "shop", b'{"inputs"'), "infer", "shop"),
        Kind(_post(path, "shop", b'{"inputs":{}}'), "infer", "shop"),
        Kind(_post("/v1/models/unknown/infer", "shop", body), "infer", "shop"),
        Kind(_post(path, "", body), "infer", "other"),
        Kind(_post(path, "guessed", body), "infer", "other"),
        Kind(_post(path, "narrow", body), "infer", "narrow"),
        Kind(_post(path, "limited", body), "infer", "limited"),
        Kind(by_shop + b"Content-Length: 999999\r\n\r\n", "infer", "shop"),
        Kind(
            by_shop + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            "infer", "shop",
        ),
        Kind(
            by_shop + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "infer", "shop"
        ),
        Kind(
            b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            "pages", "other", 0.1,
        ),
        Kind(
            b"GET / HTTP/1.1\r\n" + b"X-Y: z\r\n" * 300 + b"\r\n",
            "pages", "other", 0.1,
        ),
        Kind(
            by_shop + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1],
            "infer", "shop", leaves=True,
        ),
        Kind(
            by_shop + b"Transfer-Encoding: chunked\r\n\r\n" + chunked[:-9],
            "infer", "shop", leaves=True,
        ),
        Kind(b"HELLO\r\n\r\n", "none", "other"),
        Kind(b"GET / HTTP/1.1\r\nHost", "pages", "other", 0.001),
    ]  # fmt: skip


def _post(path: str, key: str, content: bytes) -> bytes:
    given = f"X-API-Key: {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}{given}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _get(path: str, key: str = "") -> bytes:
    given = f"X-API-Key: {key}\r\n" if key else ""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{given}\r\n".encode()


class Client:
    """A client that sends one request after the other over one connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock: socket.socket | None = None
        self.seen: Counter[Answer] = Counter()
        #: Requests that got no answer, by kind.
        self.unanswered: Counter[bytes] = Counter()

    def ask(self, kind: Kind) -> None:
        """Send one request and count its answer."""
        if self._sock is None:
            self._sock = socket.create_connection((HOST, self._port), PATIENCE)
        self._sock.sendall(kind.raw)
        if kind.leaves:
            self.close()
            self.seen[kind.route, str(GONE), "cancelled", kind.key] += 1
            return
        head, body, is_last = self._read(self._sock)
        if is_last:
            self.close()
        if not head:
            self.unanswered[kind.raw[:60]] += 1
            return
        status = head.split(b" ", 2)[1].decode()
        code = ""
        if int(status) >= 400:
            code = json.loads(body)["code"]
        self.seen[kind.route, status, code, kind.key] += 1

    def _read(self, sock: socket.socket) -> tuple[bytes, bytes, bool]:
        """Return the head and the body of an answer, and whether it is the last."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = sock.recv(1 << 16)
            if not more:
                return b"", b"", True
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")[1:]]
        headers = dict(line.split(b": ", 1) for line in lines)
        length = headers.get(b"content-length")
        ends = b"" if length is not None else b"0\r\n\r\n"
        while len(body) < int(length or 0) or not body.endswith(ends):
            more = sock.recv(1 << 16)
            if not more:
                break
            body += more
        return head, body, headers.get(b"connection") == b"close"

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def drive(
    port: int, load: Sequence[Kind], requests: int, clients: int = 8, seed: int = 1
) -> tuple[Counter[Answer], Counter[bytes]]:
    """Send each kind once, then a mixed load of `requests`; return the counted answers,
    and the requests without an answer.
    """
    weights = [kind.weight for kind in load]
    made = [Client(port) for _ in range(clients)]
    failed: list[BaseException] = []

    def run(client: Client, number: int) -> None:
        drawn = random.Random(seed * 1000 + number)
        try:
            for kind in drawn.choices(load, weights, k=requests // clients):
                client.ask(kind)
        except BaseException as error:
            failed.append(error)
        finally:
            client.close()

    first = Client(port)
    made.append(first)
    for kind in load:
        first.ask(kind)
    first.close()
    threads = [
        threading.Thread(target=run, args=(client, number))
        for number, client in enumerate(made[:clients])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    seen, unanswered = Counter[Answer](), Counter[bytes]()
    for client in made:
        seen += client.seen
        unanswered += client.unanswered
    return seen, unanswered


def counted(url: str) -> Counter[Answer]:
    """Return the server's counts so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        return parse(answer.read().decode())


def parse(text: str) -> Counter[Answer]:
    """Return the answers in the text of `/metrics`."""
    found = Counter[Answer]()
    for sample in _SAMPLE.finditer(text):
        labels = dict(_LABEL.findall(sample[1]))
        names = ("route", "status", "code", "key")
        route, status, code, key = (labels.get(name, "") for name in names)
        found[route, status, code, key] = round(float(sample[2]))
    return found


def differences(
    seen: Mapping[Answer, int], now: Mapping[Answer, int], before: Mapping[Answer, int]
) -> Iterator[str]:
    """Yield the counters whose change differs from `seen`, except for scrapes."""
    for answer in sorted({*seen, *now}):
        if answer[0] == "metrics":
            continue
        moved = now.get(answer, 0) - before.get(answer, 0)
        if moved != seen.get(answer, 0):
            yield f"{answer}: counted {moved}, seen {seen.get(answer, 0)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.drivers.answers", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    scenario = SCENARIOS["S-json"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (source,) = write_models(folder, scenario.model).values()
        if compile_models([source], folder / "models").returncode != 0:
            sys.exit("popgate compile failed")
        keys = folder / "keys.toml"
        keys.write_text(KEYS)
        more = ["--keys", str(keys), "--workers", str(options.workers), *OPTIONS]
        with gateway(folder / "models", *more, devices="cpu:1") as server:
            server.wait_ready()
            (payload,) = [r.payload for r in scenario.requests(Mode.SAME)][:1]
            load = kinds(scenario.model, payload.body)
            return _run(server, load, options.requests, options.clients)


def _run(server: Server, load: Sequence[Kind], requests: int, clients: int) -> int:
    before, began = counted(server.url), time.monotonic()
    seen, unanswered = drive(server.port, load, requests, clients)
    seconds = time.monotonic() - began
    for answer, count in sorted(seen.items()):
        print(*(word or "-" for word in answer), count)
    latest = time.monotonic() + PATIENCE
    while wrong := list(differences(seen, counted(server.url), before)):
        if time.monotonic() > latest:
            break
        time.sleep(0.1)  # the server notices a disconnected client a moment later
    print(f"{seen.total()} answers in {seconds:.1f} s, {len(seen)} kinds")
    print(*wrong or ["all were counted once"], sep="\n")
    for what, count in unanswered.items():
        print(f"no answer to {what!r}: {count}")
    return 1 if wrong or unanswered else 0


if __name__ == "__main__":
    sys.exit(main())
