"""`popgate perf` against a real gateway.

Covers: plugins/tools/src/popgate_tools/perf/command.py,
    plugins/tools/src/popgate_tools/perf/measure.py,
    plugins/tools/src/popgate_tools/perf/report.py,
    plugins/tools/src/popgate_tools/perf/load.py,
    plugins/tools/src/popgate_tools/perf/requests.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from array import array
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import islice, repeat
from pathlib import Path

import pytest

from plugins.client.tests.peer import Peer, Reply, http, says, waits
from popgate_client import Client
from popgate_tools.perf.load import RunRecord, closed_loop, open_loop
from popgate_tools.perf.measure import gaps, is_stable, phases
from popgate_tools.perf.report import round_ticks
from tests.app.cli.calls import Call
from tests.app.cli.terminal import in_terminal
from tests.app.served import Serve, ServedGateway, add
from tests.engine import models
from tests.support import WAIT

QUICK = ["--seconds", "0.2", "--warm-up", "0.1", "--within", "1000"]


def test_a_sweep(popgate: Call, gateway: ServedGateway, tmp_path: Path) -> None:
    numbers, page = tmp_path / "p.json", tmp_path / "p.html"
    done = popgate(
        "perf", "affine", "--url", gateway.url, "-c", "1,4", "--batch", "2", *QUICK,
        "--json", numbers, "--html", page,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert [line.split("  ")[0] for line in done.out.splitlines()] == [
        "load", "1 in flight", "4 in flight",
    ]  # fmt: skip
    document = json.loads(numbers.read_text())
    assert document["about"]["model"] == "affine"
    for step, connections in zip(document["steps"], (1, 4), strict=True):
        assert step["load"]["connections"] == connections
        assert step["requests"] > 0
        assert step["failed"] == 0
        values = list(step["quantiles"].values())
        assert values == sorted(values)
        assert list(step["quantiles"]) == ["p50", "p90", "p95", "p99", "p99.9"]
        server = step["server"]
        assert 0 < server["compute_infer"] < server["request"]
        # Both are in milliseconds, though not of the same requests: the server also
        # counts those that the step began or left unfinished.
        assert server["request"] < 100 * step["mean"]
    text = page.read_text()
    assert text.count("<svg") == 5
    Offline().feed(text)


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (1.147, [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2]),
        (4, [0, 1, 2, 3, 4]),
        (6158, [0, 1000, 2000, 3000, 4000, 5000, 6000, 7000]),
        (1e-3, [0, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3]),
    ],
)
def test_ticks_are_round(highest: float, ticks: list[float]) -> None:
    assert round_ticks(highest) == ticks


def test_a_terminal_shows_that_it_goes_on(gateway: ServedGateway) -> None:
    seen = in_terminal("perf", "affine", "--url", gateway.url, *QUICK)
    assert seen.code == 0, seen.written
    assert re.search(r"1 in flight: window 2, [0-9.]+ requests/s", seen.written)
    shown = [line.split("  ")[0] for line in seen.lines if line.strip()]
    assert shown == ["load", "1 in flight"]


class Offline(HTMLParser):
    """Fails where a page needs anything from elsewhere."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("img", "link", "iframe")
        assert not {"src", "href"} & {name for name, _ in attrs}


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_an_open_loop(popgate: Call, gateway: ServedGateway, arrivals: str) -> None:
    done = popgate(
        "perf", "text", "--url", gateway.url, "-r", "50,100", "--arrivals", arrivals,
        *QUICK,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert f"50/s {arrivals}" in done.out


@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_given_inputs(popgate: Call, gateway: ServedGateway, encoding: str) -> None:
    done = popgate(
        "perf",
        "gather",
        "--url",
        gateway.url,
        "-i",
        "index=[1]",
        "-e",
        encoding,
        *QUICK,
    )
    assert done.code == 0, done.err


def test_inputs_without_elements(popgate: Call, serve: Serve) -> None:
    served = serve(lambda root: models.affine(root / "none.popef", width=0))
    done = popgate("perf", "none", "--url", served.url, *QUICK)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["none"], 1, "unknown model: 'none'"),
        (["affine", "-c", "0"], 2, "--concurrency 0: expected whole numbers above 0"),
        (["affine", "-c", "0.5"], 2, "--concurrency 0.5: expected whole numbers"),
        (["affine", "-r", "0"], 2, "--rate 0: expected numbers above 0 and below 1000"),
        (["affine", "-r", "x"], 2, "--rate x: expected numbers"),
        (["affine", "-r", "1", "--arrivals", "tidal"], 2, "expected poisson"),
        (["affine", "-i", "x=1"], 2, "no input 'x'; affine takes input"),
        (["affine", "-e", "xml"], 2, "expected one of json"),
        (["affine", "--json", "/none/x.json"], 2, "no such folder"),
        (["affine", "--shape", "input=1,3"], 1, "unexpected shape"),
        (["affine", "--shape", "input=a,3"], 2, "--shape input=a,3: expected sizes"),
        (["affine", "--shape", "input=-1,4"], 2, "--shape input=-1,4: expected sizes"),
        (["affine", "-b", "9999999999"], 2, "would have 39999999996 elements"),
        (["affine", "--json", "/"], 2, "/ is a folder; name a file"),
    ],
)
def test_mistakes(
    popgate: Call, gateway: ServedGateway, arguments: list[str], code: int, said: str
) -> None:
    done = popgate("perf", *arguments, "--url", gateway.url, *QUICK)
    assert said in done.err
    assert done.code == code


def requests_of(gateway: ServedGateway) -> tuple[Client, list[bytes]]:
    client = Client(gateway.url)
    return client, [client.prepare("affine", [1, 2, 3, 4])]


def test_all_that_is_due_is_sent(gateway: ServedGateway) -> None:
    """However late: the number of requests is that of their times."""
    client, requests = requests_of(gateway)
    with client:
        run = asyncio.run(
            open_loop(client.address, requests, repeat(1 / 400), 16, seconds=0.5)
        )
    assert abs(run.sent + run.late - 200) <= 1 + run.late
    assert run.not_ok == run.broken == 0
    assert run.count <= run.sent


def test_waiting_for_a_connection_counts(gateway: ServedGateway) -> None:
    """Ten requests due at once over one connection: each waits for those before it."""

    def at_once() -> Iterator[float]:
        yield from repeat(0.0, 10)
        yield 1e9

    client, requests = requests_of(gateway)
    with client:
        run = asyncio.run(open_loop(client.address, requests, at_once(), 1, 1.0))
    assert run.count == 10
    assert run.late == 9
    assert list(run.latencies) == sorted(run.latencies)


REQUEST = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


def loop_against(
    connections: int, seconds: float, *replies: Reply
) -> tuple[RunRecord, Peer]:
    with Peer(*replies) as peer:
        address = ("127.0.0.1", int(peer.url.rpartition(":")[2]))
        return asyncio.run(closed_loop(address, [REQUEST], connections, seconds)), peer


@pytest.mark.parametrize("connections", [1, 3])
def test_a_server_that_is_drained_fails_no_request(
    tmp_path: Path, connections: int
) -> None:
    """Each of its answers is the last of its connection."""
    add(tmp_path, "affine")
    with ServedGateway(tmp_path) as served:
        client, requests = requests_of(served.wait_ready())
        with client:
            assert served.client.post("/v1/drain").status_code == 200
            run = asyncio.run(closed_loop(client.address, requests, connections, 0.5))
            due = open_loop(client.address, requests, repeat(0.01), connections, 0.5)
            opened = asyncio.run(due)
    for each in (run, opened):
        assert (each.not_ok, each.broken) == (0, 0)
        assert each.count > connections


@pytest.mark.parametrize("connections", [1, 2])
def test_errors_and_lost_connections_are_counted(connections: int) -> None:
    for reply, not_ok, broken in (
        (says(http({"error": "no"}, 500)), True, False),
        (says(b"", keep=False), False, True),
        (says(b"HTTP/1.1 200 OK\r\n\r\nendless"), False, True),
    ):
        run, _ = loop_against(connections, 0.5, reply)
        assert run.count == 0
        assert (run.not_ok > 0, run.broken > 0) == (not_ok, broken)


def test_a_large_request_is_sent_as_the_server_reads_it() -> None:
    """A server that reads nothing for longer than a call waits is not lost."""
    request = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s"
    large = request % (1 << 24, b"x" * (1 << 24))
    reading = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as source:
                threading.Timer(0.2, reading.set).start()
                reading.wait(WAIT)
                source.read(len(large))
                connection.sendall(http({"a": 1}))

        thread = threading.Thread(target=serve)
        thread.start()
        run = asyncio.run(closed_loop(server.getsockname(), [large], 1, WAIT))
        thread.join()
    assert (run.count, run.sent) == (1, 2)  # until the server closes


def test_answers_end_where_they_say() -> None:
    """Whatever came before, and in whatever parts: none is counted twice, or early."""
    whole, other = http({"a": 1}), http({"error": 1})
    several: list[Reply] = [
        says(whole), says(whole), in_parts(whole), says(other), in_parts(other),
        says(http({"a": 1}, 201)), says(http({"a": "x" * 300_000})), says(whole),
        says(whole.replace(b"Said", b"Sai").replace(b"10", b"11") + b" "),
        in_parts(http({"a": "x" * 300_000})), says(b"", keep=False),
    ]  # fmt: skip
    run, peer = loop_against(1, WAIT, *several)  # until the last one ends it
    assert (run.count, run.not_ok, run.broken) == (9, 1, 1)
    assert len(peer.requests) == run.sent == 11


def in_parts(data: bytes) -> Reply:
    def reply(connection: socket.socket) -> bool:
        for at in range(0, len(data), 1 + len(data) // 5):
            connection.sendall(data[at : at + 1 + len(data) // 5])
        return True

    return reply


def test_a_server_that_says_nothing_keeps_no_window() -> None:
    with Peer(waits(released := threading.Event())) as peer:
        address = ("127.0.0.1", int(peer.url.rpartition(":")[2]))
        run = asyncio.run(closed_loop(address, [REQUEST], 1, 0.1))
        assert (run.sent, run.count, run.not_ok, run.broken) == (1, 0, 0, 0)

        async def interrupted() -> None:
            task = asyncio.current_task()
            assert task is not None
            threading.Timer(0.1, task.cancel).start()  # as Control-C does
            await closed_loop(address, [REQUEST], 1, WAIT)
            await asyncio.sleep(0)

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(interrupted())
        released.set()


def test_times_of_arrival() -> None:
    assert list(islice(gaps(4, "constant", 0), 3)) == [0.25] * 3
    some = list(islice(gaps(4, "poisson", 0), 10_000))
    assert some == list(islice(gaps(4, "poisson", 0), 10_000))
    assert abs(sum(some) / len(some) - 0.25) < 0.01
    assert some != list(islice(gaps(4, "poisson", 1), 10_000))


def window(count: int, latency: float) -> RunRecord:
    return RunRecord(seconds=1.0, latencies=array("d", [latency] * count))


def test_when_windows_agree() -> None:
    even = [window(100, 0.01)] * 3
    assert is_stable(even, 0.1)
    assert not is_stable(even[:2], 0.1)
    assert is_stable([window(1, 1.0), *even], 0.1)
    assert not is_stable([*even[:2], window(50, 0.01)], 0.1)
    assert not is_stable([*even[:2], window(100, 0.02)], 0.1)
    assert not is_stable([window(0, 0)] * 3, 0.1)


def test_phases_of_servers_without_statistics() -> None:
    assert phases(None, None) == {}
    assert phases({"model_stats": [{}]}, {"model_stats": [{}]}) == {}
