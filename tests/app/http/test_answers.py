"""Each answer is counted once: what the server counts is what its clients saw.

Covers: app/http/answer_watch.py, bench/drivers/answers.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
from collections import Counter
from pathlib import Path

import httpx
import pytest

from bench.drivers.answers import (
    KEYS,
    OPTIONS,
    Answer,
    counted,
    differences,
    drive,
    kinds,
)
from tests.app.served import ServedGateway, add
from tests.engine import models
from tests.support import WAIT, until

BODY = json.dumps({"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}).encode()


def port_of(served: ServedGateway) -> int:
    return int(served.url.rpartition(":")[2])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    add(tmp_path / "models", "affine")
    return tmp_path / "models"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_counters_have_what_clients_saw(
    root: Path, tmp_path: Path, workers: str
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    with ServedGateway(
        root, "--keys", str(keys), "--workers", workers, *OPTIONS
    ) as served:
        served.wait_ready()
        until(lambda: served.client.get("/v1/models", headers={"x-api-key": "shop"}))
        before = counted(served.url)
        load = kinds("affine", BODY)
        seen, unanswered = drive(port_of(served), load, 1500, clients=4)
        assert not unanswered
        # The server notices a disconnected client a moment later.
        until(lambda: not list(differences(seen, counted(served.url), before)))
        now = counted(served.url)
        assert seen["infer", "200", "", "shop"] > 500
        statuses = {answer[1] for answer in seen}
        wanted = {"200", "400", "401", "403", "404", "408", "413", "414", "429", "431"}
        assert wanted | {"499"} <= statuses
        assert {answer[3] for answer in now} == {
            "shop", "desk", "narrow", "limited", "other",
        }  # fmt: skip
        _leave_at_any_time(served, load[0].raw)


def _leave_at_any_time(served: ServedGateway, raw: bytes) -> None:
    """Disconnect after whole requests: each is one answer, and one success or failure
    of its model, whatever the server had done of it.
    """

    def counts() -> tuple[int, int]:
        answers = counted(served.url)
        text = served.client.get("/metrics").text
        ends = re.findall(
            r'^nv_inference_request_(?:success|failure)\{model="affine",.*\} (\d+)',
            text,
            re.MULTILINE,
        )
        ours = ("infer", "200", "", "shop"), ("infer", "499", "cancelled", "shop")
        return sum(answers[one] for one in ours), sum(map(int, ends))

    before, times = counts(), 30
    for number in range(times):
        with socket.create_connection(("127.0.0.1", port_of(served))) as connection:
            connection.sendall(raw)
            if number % 2:  # a reset, which the server notices while it writes
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    expected = tuple(one + times for one in before)
    until(lambda: counts() == expected, expected)


def test_without_keys_there_is_no_label_for_them(root: Path) -> None:
    with ServedGateway(root) as served:
        served.wait_ready()
        served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])
        text = served.client.get("/metrics").text
        assert 'popgate_http_responses_total{route="infer",status="200"} 1' in text


def test_connections_that_are_too_many_are_counted(root: Path) -> None:
    with ServedGateway(root, "--max-connections", "4") as served:
        served.wait_ready()
        before = counted(served.url)
        seen: Counter[Answer] = Counter()
        held = [
            socket.create_connection(("127.0.0.1", port_of(served))) for _ in "1234"
        ]
        for _ in range(3):
            answer = httpx.post(
                f"{served.url}/v1/models/affine/infer", content=BODY, timeout=WAIT
            )
            assert answer.status_code == 503
            seen["infer", "503", answer.json()["code"], ""] += 1
        for connection in held:
            connection.close()
        assert list(differences(seen, counted(served.url), before)) == []


def test_a_client_that_has_gone_is_counted_as_gone(tmp_path: Path) -> None:
    root = tmp_path / "models"
    add(root, "slow", models.slow)
    with ServedGateway(root) as served:
        served.wait_ready()
        in_flight = 'popgate_requests_in_flight{model="slow",version="1"} 1'
        body = b'{"inputs":{"count":1000000000}}'
        for more in (b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked"):
            sent = body
            if more.startswith(b"T"):
                sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            with socket.create_connection(("127.0.0.1", port_of(served))) as connection:
                connection.sendall(
                    b"POST /v1/models/slow/infer HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b"
                    % (more, sent)
                )
                until(lambda: in_flight in served.client.get("/metrics").text)
        gone = ("infer", "499", "cancelled", "")
        until(lambda: counted(served.url)[gone] == 2)
        others = {a: n for a, n in counted(served.url).items() if a[0] == "infer"}
        assert others == {gone: 2}


def test_what_a_worker_has_counted_outlives_it(root: Path) -> None:
    with ServedGateway(root, "--workers", "2") as served:
        served.wait_ready()
        for _ in range(10):
            httpx.post(f"{served.url}/v1/models/affine/infer", content=BODY)
        assert counted(served.url)["infer", "200", "", ""] == 10
        workers = served.workers()
        assert len(workers) == 2
        for pid in workers:
            os.kill(pid, signal.SIGKILL)

        def count() -> int:
            try:
                return counted(served.url)["infer", "200", "", ""]
            except OSError:
                return 0

        until(lambda: count() == 10)
