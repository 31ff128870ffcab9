"""Attack a gateway, and measure the effect of each attack on other clients.

    python -m bench.hostile                    # two minutes
    python -m bench.hostile --only "wrong keys" --windows 20

A gateway with keys serves a few ordinary clients, quietly and attacked in turns. The
attacks come from a process of the lowest priority. Its processor time slows the others
down, whatever the gateway does. So in a third kind of window such a process only
computes. For each attack it shows how often each answer came, and the most memory and
descriptors of the gateway. It also shows the ratios of the others' 99th percentile
under attack to that of the quiet windows, and to that beside the computing process.

Exit code 1 if an ordinary request failed, an attack had an unexpected answer, or the
gateway still held resources afterwards. The ratio is not judged, because other work on
the machine changes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import math
import os
import select
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median, quantiles
from urllib.request import urlopen

import trustme

from bench.cases.models import write_models
from bench.servers.processes import descriptors, usage
from bench.servers.server import HOST, ROOT, Server, gateway

PATIENCE = 0.5  # seconds of the server's timeouts
WINDOW = 3.5  # seconds
NEIGHBOURS, PAUSE = 4, 0.002  # connections; seconds between two requests of one
MIB = 1 << 20
KEY, WRONG = b"X-API-Key: good\r\n", b"X-API-Key: wrong\r\n"
INFER = b"POST /v1/models/small/infer HTTP/1.1\r\nHost: x\r\n"
OPTIONS = (
    "--header-timeout", str(PATIENCE), "--upload-timeout", str(PATIENCE),
    "--send-timeout", str(PATIENCE), "--max-body-size", "1MiB",
)  # fmt: skip


class Wire:
    """One connection of an attacker."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.writer = writer

    async def status(self, patience: float = 30.0) -> str:
        """Return the status of the next answer; else `closed`, `reset`, or `nothing` in
        time.
        """
        try:
            # `wait_for` may lose a cancellation.
            async with asyncio.timeout(patience):
                data = await self.reader.read(1 << 16)
        except TimeoutError:
            return "nothing"
        except ConnectionError:
            return "reset"
        return data[9:12].decode() if data else "closed"

    async def say(self, *pieces: bytes) -> str:
        """Send this; return the status of the answer."""
        try:
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()
        except ConnectionError:
            return await self.status()
        return await self.status()

    async def drip(self, begin: bytes, piece: bytes) -> str:
        self.writer.write(begin)
        while True:
            got = await self.status(PATIENCE / 10)
            if got != "nothing":
                return got
            with contextlib.suppress(ConnectionError):
                self.writer.write(piece)
                await self.writer.drain()


#: Attacks once, on a new connection, and returns the outcome. It is called repeatedly.
Act = Callable[[Wire], Awaitable[str]]


async def slow_head(wire: Wire) -> str:
    return await wire.drip(INFER + b"X-A: ", b"a")


async def slow_body(wire: Wire) -> str:
    return await wire.drip(INFER + KEY + b"Content-Length: 1000\r\n\r\n", b"")


async def half_open(wire: Wire) -> str:
    wire.writer.write(INFER + KEY + b"Content-Length: 100\r\n\r\n{")
    await asyncio.sleep(0)
    wire.writer.transport.abort()
    return "left"


async def two_lengths(wire: Wire) -> str:
    return await wire.say(
        INFER + KEY + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"
    )


async def no_length(wire: Wire) -> str:
    return await wire.say(INFER + KEY + b"Content-Length: -5\r\n\r\n")


async def chunk_bomb(wire: Wire) -> str:
    chunk = b"4000\r\n" + bytes(0x4000) + b"\r\n"
    head = INFER + KEY + b"Transfer-Encoding: chunked\r\n\r\n"
    return await wire.say(head, *[chunk] * 256)


BOMB = gzip.compress(bytes(128 * MIB), 9)


async def gzip_bomb(wire: Wire) -> str:
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB)
    return await wire.say(INFER + KEY + head, BOMB)


async def wrong_key(wire: Wire) -> str:
    request = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + WRONG + b"\r\n"
    got = "closed"
    for _ in range(100):
        wire.writer.write(request)
        try:
            head = await wire.reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
            await wire.reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError):
            return "closed"
        got = head[9:12].decode()
    return got


async def wrong_key_of_inference(wire: Wire) -> str:
    return await wire.say(INFER + WRONG + b"Content-Length: 2\r\n\r\n{}")


async def idle(wire: Wire) -> str:
    await wire.say(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(1000)
    return "closed"


async def unread(wire: Wire) -> str:
    wire.writer.transport.set_write_buffer_limits(1 << 16)
    request = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n" + KEY + b"\r\n"
    try:
        while True:
            wire.writer.write(request * 500)
            await wire.writer.drain()
    except ConnectionError:
        return "reset"


async def stalled_handshake(wire: Wire) -> str:
    return await wire.say(b"\x16\x03\x01\x02\x00\x01")


@dataclass(frozen=True, slots=True)
class Attack:
    """`count` connections at a time call `act`; its allowed outcomes are those of
    `Wire.status`.
    """

    act: Act
    count: int
    gets: frozenset[str]


def _attack(act: Act, count: int, *gets: str) -> Attack:
    return Attack(act, count, frozenset(gets))


ATTACKS = {
    "slow heads": _attack(slow_head, 200, "408"),
    "slow bodies": _attack(slow_body, 200, "408"),
    "half-open connections": _attack(half_open, 20, "left"),
    "two lengths": _attack(two_lengths, 16, "400"),
    "a length below zero": _attack(no_length, 16, "400"),
    # If a peer closes with unread bytes, the answer may be lost.
    "chunks without end": _attack(chunk_bomb, 16, "413", "reset"),
    "gzip bombs": _attack(gzip_bomb, 16, "413"),
    "wrong keys": _attack(wrong_key, 16, "401"),
    "wrong keys of inference": _attack(wrong_key_of_inference, 16, "401"),
    "2,000 connections": _attack(idle, 2000),
    "pipelining unread": _attack(unread, 20, "reset"),
    "stalled handshakes": _attack(stalled_handshake, 200, "closed", "reset"),
}
ON_TLS = "stalled handshakes"
COMPUTE = "compute"


def compute() -> Counter[str]:
    """Use the processor until standard input ends, without touching the gateway."""
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        sum(range(100_000))
    return Counter()


async def attack(name: str, port: int) -> Counter[str]:
    """Attack until standard input ends; print how often each answer came."""
    chosen, got = ATTACKS[name], Counter[str]()

    async def again_and_again() -> None:
        while True:
            try:
                streams = await asyncio.open_connection(HOST, port, limit=1024)
            except OSError as error:
                got[type(error).__name__] += 1
                await asyncio.sleep(0.05)
                continue
            wire = Wire(*streams)
            try:
                got[await chosen.act(wire)] += 1
            finally:
                wire.writer.transport.abort()

    tasks = [asyncio.create_task(again_and_again()) for _ in range(chosen.count)]
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return got


@contextlib.contextmanager
def attacked(name: str, port: int, got: Counter[str]) -> Iterator[None]:
    """Attack during the block; add its outcomes to `got`."""
    command = [sys.executable, "-m", "bench.hostile", "--attack", name, str(port)]
    with subprocess.Popen(
        ["nice", "-n", "19", *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()
            got.update(json.loads(process.stdout.read()))


async def neighbours(port: int, tls: ssl.SSLContext | None) -> list[float]:
    """Return the seconds of each request in one window. Raises if one fails."""
    body = json.dumps({"inputs": {"x": [[1.0] * 16]}}).encode()
    request = INFER + KEY + b"Content-Length: %d\r\n\r\n" % len(body) + body
    took: list[float] = []
    end = time.monotonic() + WINDOW

    async def ask() -> None:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=tls)
        while (began := time.monotonic()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
            await reader.readexactly(size)
            took.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE)
        writer.close()

    await asyncio.gather(*(ask() for _ in range(NEIGHBOURS)))
    return took


def percentile(took: Sequence[float]) -> float:
    return quantiles(took, n=100)[98] if len(took) > 1 else math.inf


def run(name: str, server: Server, tls: ssl.SSLContext | None, windows: int) -> bool:
    """Run one attack, in turns with quiet windows; return whether it passed."""
    got: Counter[str] = Counter()
    quiet, beside, noisy = [], [], []
    most_memory = most_open = 0
    asyncio.run(neighbours(server.port, tls))
    before, held = usage([server.pid]).rss, descriptors(server.pid)
    for _ in range(windows):
        quiet.append(percentile(asyncio.run(neighbours(server.port, tls))))
        with attacked(COMPUTE, server.port, got):
            beside.append(percentile(asyncio.run(neighbours(server.port, tls))))
        with attacked(name, server.port, got):
            noisy.append(percentile(asyncio.run(neighbours(server.port, tls))))
            most_open = max(most_open, descriptors(server.pid) - held)
            most_memory = max(most_memory, usage([server.pid]).rss - before)
        end = time.monotonic() + 10
        while descriptors(server.pid) > held + 1 and time.monotonic() < end:
            time.sleep(0.05)
    left = max(0, descriptors(server.pid) - held - 1)
    wrong = {k: n for k, n in got.items() if k not in ATTACKS[name].gets}
    answers = ", ".join(f"{n} x {k}" for k, n in got.most_common()) or "held"
    print(
        f"{name:<24} {answers:<28} "
        f"p99 {median(quiet) * 1e3:5.1f} ms x {median(noisy) / median(quiet):4.2f}, "
        f"{median(noisy) / median(beside):4.2f} of control  "
        f"{most_memory / MIB:+6.1f} MiB  "
        f"{most_open:+5d} descriptors" + (f"  LEFT {left}" if left else "")
        + (f"  WRONG {wrong}" if wrong else ""),
        flush=True,
    )  # fmt: skip
    return not (wrong or left)


def _wait_ready(server: Server, trust: ssl.SSLContext) -> None:
    """Wait until a server with TLS is ready, as `Server.wait_ready` does."""
    end = time.monotonic() + 60
    while True:
        try:
            with urlopen(
                f"https://{HOST}:{server.port}/v2/health/ready", context=trust
            ):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _keys(folder: Path) -> Path:
    path = folder / "keys.toml"
    digest = sha256(b"good").hexdigest()
    groups = ["infer", "metadata", "pages"]
    path.write_text(f'[[key]]\nname = "good"\nsha256 = "{digest}"\ngroups = {groups}\n')
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only", help="one attack, by its name", choices=ATTACKS, action="append"
    )
    parser.add_argument("--windows", type=int, default=3, help="of each kind")
    parser.add_argument("--attack", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.attack is not None:
        name, port = options.attack
        calm = name == COMPUTE
        print(json.dumps(compute() if calm else asyncio.run(attack(name, int(port)))))
        return 0
    names = options.only or list(ATTACKS)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        models.mkdir()
        write_models(models, "small")
        given = (*OPTIONS, "--keys", str(_keys(Path(folder))))
        plain = [name for name in names if name != ON_TLS]
        if plain:
            with gateway(models, *given) as server:
                server.wait_ready()
                for name in plain:
                    good &= run(name, server, None, options.windows)
        if ON_TLS in names:
            authority = trustme.CA()
            pem = Path(folder) / "server.pem"
            issued = authority.issue_cert(HOST)
            issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
            trust = ssl.create_default_context()
            authority.configure_trust(trust)
            with gateway(models, *given, "--tls-cert", str(pem)) as server:
                _wait_ready(server, trust)
                good &= run(ON_TLS, server, trust, options.windows)
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
