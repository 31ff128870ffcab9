"""`popgate serve --workers 2`: several processes take connections for one server.

Covers: app/other_processes.py,
    plugins/workers/src/popgate_workers/announcements.py,
    plugins/workers/src/popgate_workers/joined_devices.py,
    plugins/workers/src/popgate_workers/process.py,
    plugins/workers/src/popgate_workers/processes.py,
    plugins/workers/src/popgate_workers/publication.py,
    plugins/workers/src/popgate_workers/questions.py,
    plugins/workers/src/popgate_workers/server.py,
    plugins/workers/src/popgate_workers/shared_runners.py,
    plugins/workers/src/popgate_workers/stand_in.py,
    plugins/workers/src/popgate_workers/supervisor.py,
    plugins/workers/src/popgate_workers/worker.py,
    plugins/workers/src/popgate_workers/worker_paths.py,
    plugins/workers/src/popgate_workers/worker_process.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trustme

from app.config.keys import digest_of
from app.plugins import ROUTES, TRACERS, plugin_names
from plugins.workers.tests.conftest import (
    ROWS,
    connect,
    infer,
    metric,
    prefix,
    process_of,
)
from popgate_workers.messages import Start
from popgate_workers.shared_totals import SharedTotals
from popgate_workers.worker_process import StartedWorker
from tests.app.served import ServedGateway, add
from tests.engine import models
from tests.support import WAIT, is_gone, no_descriptors, until

TWICE = [3.0, 5.0, 7.0, 9.0]


def test_both_count_and_the_sums_are_exact(
    served: ServedGateway, clients: dict[str, httpx.Client]
) -> None:
    before = statistics(served)
    for client in clients.values():
        for _ in range(20):
            assert infer(client).json()["outputs"][0]["data"] == TWICE
        bad = client.post("/v1/models/affine/infer", json={"inputs": {"input": [1.0]}})
        assert bad.status_code == 400
    after = statistics(served)
    assert after["success"] - before["success"] == 40
    assert after["fail"] - before["fail"] == 2
    assert after["inferences"] - before["inferences"] == 40
    # What became of them is told by whichever is asked.
    answered = served.client.get("/v1/requests", params={"limit": 200}).json()
    ids = {one["id"].partition("-")[0] for one in answered["answered"]}
    assert ids >= set(clients)
    assert len([one for one in answered["failed"] if one["model"] == "affine"]) >= 2


def statistics(served: ServedGateway, name: str = "affine") -> dict[str, int]:
    (stats,) = served.client.get(f"/v2/models/{name}/stats").json()["model_stats"]
    found = stats["inference_stats"]
    success = metric(served, "nv_inference_request_success", model=name, version="1")
    assert success == found["success"]["count"]
    return {
        "success": found["success"]["count"],
        "fail": found["fail"]["count"],
        "inferences": stats["inference_count"],
    }


def test_what_is_loaded_and_unloaded_is_so_for_all(
    served: ServedGateway, clients: dict[str, httpx.Client], repository: Path
) -> None:
    one, other = clients.values()
    add(repository, "later")
    assert infer(other, "later").status_code == 503  # its file came after the start
    one.post("/v1/models/later/load").raise_for_status()
    assert {process_of(c, "later") for c in clients.values()} == set(clients)
    # Swapped without a failed request, and seen by all from then on.
    stop = threading.Event()

    def ask(client: httpx.Client) -> list[Any]:
        seen = []
        while not stop.is_set():
            response = infer(client, "later")
            assert response.status_code == 200, response.text
            seen.append(response.json()["outputs"][0]["data"])
        return seen

    with ThreadPoolExecutor(2) as pool, connect(served) as client:
        asking = [pool.submit(ask, each) for each in clients.values()]
        add(repository, "later", models.mean_over_rows)
        client.post("/v1/models/later/load").raise_for_status()
        stop.set()
        seen = [answer for asked in asking for answer in asked.result()]
    assert TWICE in seen
    swapped = [infer(c, "later").json()["outputs"][0]["data"] for c in clients.values()]
    assert swapped[0] == swapped[1] != TWICE
    other.post("/v1/models/later/unload").raise_for_status()
    assert [infer(c, "later").status_code for c in clients.values()] == [503, 503]


def test_what_they_do_not_run_themselves_is_answered_all_the_same(
    served: ServedGateway, clients: dict[str, httpx.Client], repository: Path
) -> None:
    supervisor = prefix(served.client.get("/v1/health/live"))
    for client in clients.values():
        assert client.get("/v1/models/affine").json()["name"] == "affine"
        assert client.get("/docs").status_code == 200
        assert client.get("/nowhere").status_code == 404
        large = client.post("/v2/repository/index", content=b" " * 300_000)
        assert large.status_code in (200, 400)
        with client.stream("GET", "/metrics") as response:
            assert prefix(response) == supervisor
            assert "popgate_worker_up" in response.read().decode()
        if not plugin_names(ROUTES):
            continue
        predicted = client.post(
            "/v1/models/affine:predict", json={"instances": [[1, 2, 3, 4]]}
        )
        assert predicted.json() == {"predictions": [TWICE]}
        assert prefix(predicted) in clients
    # What is traced is run where traces are written.
    if not plugin_names(TRACERS):
        return
    traced = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    one, other = clients.values()
    one.post("/v2/models/affine/trace/setting", json=traced).raise_for_status()
    until(lambda: {process_of(c) for c in clients.values()} == {supervisor})
    other.post(
        "/v2/models/affine/trace/setting", json={"trace_level": ["OFF"]}
    ).raise_for_status()
    until(lambda: {process_of(c) for c in clients.values()} == set(clients))


def test_log_settings_reach_all_that_are_there_and_those_that_come(
    served: ServedGateway, clients: dict[str, httpx.Client], repository: Path
) -> None:
    log = repository.parent / "log.toml"

    def is_logged(client: httpx.Client) -> bool:
        where = process_of(client)
        return any(f"id={where}-" in line for line in list(served.lines))

    log.write_text('access_log = "all"')
    served.send(signal.SIGHUP)
    for client in clients.values():
        until(partial(is_logged, client))
    os.kill(served.workers()[0], signal.SIGKILL)

    def started() -> bool:
        with connect(served) as client:
            return process_of(client) not in clients and is_logged(client)

    until(started)
    log.write_text("")
    served.send(signal.SIGHUP)


def test_a_killed_worker_takes_its_connections_and_nothing_else(
    served: ServedGateway, clients: dict[str, httpx.Client]
) -> None:
    before, pids = statistics(served), served.workers()
    restarts = sum(
        metric(served, "popgate_worker_restarts_total", worker=str(n)) for n in range(2)
    )
    for client in clients.values():
        for _ in range(5):
            infer(client)
    os.kill(pids[0], signal.SIGKILL)
    answered: list[bool] = []
    for where, client in clients.items():
        # A client that sees the end of its connection before it asks connects again.
        with contextlib.suppress(httpx.TransportError):
            answer = infer(client)
            assert answer.status_code == 200
            answered.append(prefix(answer) == where)
    assert answered.count(True) == 1
    until(lambda: len(served.workers()) == 2)
    # What it had answered stays counted; what others answered is added.
    after = statistics(served)
    assert after["success"] - before["success"] == 10 + len(answered)

    def back() -> bool:
        with connect(served) as client:
            return process_of(client) not in clients

    until(back)
    now = sum(
        metric(served, "popgate_worker_restarts_total", worker=str(n)) for n in range(2)
    )
    assert now == restarts + 1
    assert metric(served, "popgate_worker_up", worker="0") == 1


def test_a_worker_that_hangs_is_ended_and_started_again(
    served: ServedGateway, clients: dict[str, httpx.Client]
) -> None:
    pids = served.workers()
    before = statistics(served)
    os.kill(pids[0], signal.SIGSTOP)
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(infer, client) for client in clients.values()]
        # New connections do not wait for its end.
        answered = processes_of_new_connections(served)
        # On a busy machine the one that takes its place may be there already.
        assert len(answered & set(clients)) == 1
        for asked in asking:
            try:
                assert asked.result().status_code == 200
            except httpx.TransportError:
                failed += 1
    assert failed == 1  # not before its end, and no later
    until(lambda: len(served.workers()) == 2)
    assert is_gone(pids[0])
    assert served.wait_line("has not answered a ping for 5 s")
    assert statistics(served)["success"] == before["success"] + 21


def test_what_a_dead_worker_does_not_accept_is_served_by_another(
    served: ServedGateway, clients: dict[str, httpx.Client]
) -> None:
    again = stopped_in_its_start(served)
    try:
        answered = processes_of_new_connections(served)
    finally:
        os.kill(again, signal.SIGCONT)
    assert len(answered) == 1
    assert answered < set(clients)
    until(lambda: len(processes_of_new_connections(served)) == 2)


def stopped_in_its_start(served: ServedGateway) -> int:
    """Kill a worker, and stop the process that follows it before that can accept
    connections: without an event loop. One that was faster is killed, too.
    """
    lost, *_ = before = served.workers()
    while True:
        os.kill(lost, signal.SIGKILL)
        until(partial(are_two_without, lost, served))
        (again,) = set(served.workers()) - set(before)
        os.kill(again, signal.SIGSTOP)
        until(partial(is_stopped, again))
        if "anon_inode:[eventpoll]" not in open_files(again):
            return again
        lost = again


def are_two_without(lost: int, served: ServedGateway) -> bool:
    return len(set(served.workers()) - {lost}) == 2


def is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def open_files(pid: int) -> set[str]:
    return {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def processes_of_new_connections(served: ServedGateway) -> set[str]:
    """The kernel spreads them by chance: so many go to each of two sockets."""
    found = set()
    for _ in range(20):
        with connect(served) as client:
            found.add(process_of(client))
    return found


def test_a_killed_device_comes_back_for_all(
    served: ServedGateway, clients: dict[str, httpx.Client]
) -> None:
    devices = served.client.get("/v1/devices").json()["devices"]
    (pid,) = (device["pid"] for device in devices if device["id"] == "cpu:0")
    os.kill(pid, signal.SIGKILL)

    def answered(client: httpx.Client) -> bool:
        response = infer(client)
        assert response.status_code in (200, 503), response.text
        return response.status_code == 200 and prefix(response) in clients

    for client in clients.values():
        until(partial(answered, client))


def test_a_device_comes_back_for_workers_that_lack_descriptors(
    served: ServedGateway, clients: dict[str, httpx.Client]
) -> None:
    limits = {
        worker: resource.prlimit(worker, resource.RLIMIT_NOFILE)
        for worker in served.workers()
    }
    devices = served.client.get("/v1/devices").json()["devices"]
    (pid,) = (device["pid"] for device in devices if device["id"] == "cpu:0")
    for worker, (_, hard) in limits.items():
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, hard))
    try:
        os.kill(pid, signal.SIGKILL)
        what = "no descriptors are left for JoinDevice"
        until(lambda: served.output.count(what) == len(limits))
    finally:
        for worker, limit in limits.items():
            resource.prlimit(worker, resource.RLIMIT_NOFILE, limit)

    def is_back(where: str) -> bool:
        response = infer(clients[where])
        assert response.status_code in (200, 503), response.text
        return response.status_code == 200 and prefix(response) == where

    for where in clients:
        until(partial(is_back, where))


def test_a_worker_that_cannot_start_leaves_no_descriptor() -> None:
    folder = Path("/proc/self/fd")
    workers: Any = SimpleNamespace(totals=SharedTotals.create(2))
    workers.start_message = Start({}, 1, keeps_listener=False)
    workers.files = lambda: b"files"
    with workers.totals.memory, socket.socket() as listener:
        for left in range(4):
            before = len(list(folder.iterdir()))
            with no_descriptors(but=left), pytest.raises(OSError, match="Too many"):
                StartedWorker(workers, 0, listener, lambda: None)
            assert len(list(folder.iterdir())) == before


def test_workers_start_while_files_of_keys_and_tls_are_wrong(tmp_path: Path) -> None:
    """They take what the supervisor has read last, as those that live do."""
    keys, cert = tmp_path / "keys.toml", tmp_path / "server.pem"
    keys.write_text(f'[[key]]\nname = "a"\nsha256 = "{digest_of(b"one").hex()}"\n')
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(cert))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    files = ("--keys", str(keys), "--tls-cert", str(cert))
    add(tmp_path / "models", "affine")
    with ServedGateway(tmp_path / "models", "--workers", "2", *files) as served:
        served.wait_line(", after ")
        before = served.workers()
        keys.write_text("[[key]]")
        cert.unlink()
        served.wait_line("keys were not reloaded")
        served.wait_line("the certificate was not reloaded")

        def answers(key: str) -> int:
            headers = {"x-api-key": key}
            with httpx.Client(
                base_url=served.url, verify=trust, timeout=WAIT
            ) as client:
                answer = client.post(
                    "/v1/models/affine/infer", json=ROWS, headers=headers
                )
            return answer.status_code

        assert answers("one") == 200
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(set(served.workers()) - set(before)) == 2)
        for _ in range(4):
            assert (answers("one"), answers("two")) == (200, 401)
        keys.write_text(f'[[key]]\nname = "a"\nsha256 = "{digest_of(b"two").hex()}"\n')
        until(lambda: [answers("two") for _ in range(4)] == [200] * 4)


def test_ending_answers_what_is_in_flight_and_leaves_nothing(repository: Path) -> None:
    options = ("--workers", "2", "--trust-loopback", "--access-log", "all")
    with ServedGateway(repository, *options) as served:
        served.wait_ready()
        with connect(served) as client, ThreadPoolExecutor(1) as pool:
            until(lambda: infer(client).status_code == 200)
            work = {"inputs": {"count": 30_000}}
            slow = pool.submit(client.post, "/v1/models/slow/infer", json=work)
            until(lambda: metric(served, "popgate_device_in_flight", device="cpu:0"))
            pids = served.workers()
            with connect(served) as other:
                other.post("/v1/drain").raise_for_status()
            until(lambda: infer(client).headers.get("connection") == "close")
            assert served.stop() == 0
            answer = slow.result()
            assert answer.status_code == 200
        # Its line has waited for others until the end.
        assert served.output.count(f"id={answer.headers['x-request-id']} ") == 1
        assert [is_gone(pid) for pid in pids] == [True, True]
        assert not re.search("Traceback|SIGKILL", served.output)


def test_nothing_outlives_the_supervisor(repository: Path) -> None:
    with ServedGateway(repository, "--workers", "2") as served:
        served.wait_ready()
        pids = served.workers()
        (device,) = served.client.get("/v1/devices").json()["devices"]
        served.process.kill()
        for pid in (*pids, device["pid"]):
            until(partial(is_gone, pid))
