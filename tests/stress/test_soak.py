"""64 clients, mixed models and encodings for a few seconds; long: `make soak`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bench.servers.processes import Usage, named_memory
from bench.servers.server import gateway
from bench.soak import MODELS, Soak, growth, prepare, soak_server

SECONDS = 2.5
WARM_UP = 1.0


@pytest.mark.stress
def test_every_client_gets_its_own_answers(tmp_path: Path) -> None:
    jobs = prepare(tmp_path, MODELS, 40)
    with gateway(tmp_path / "models", devices="cpu:1") as server:
        server.wait_ready()
        soak = asyncio.run(soak_server(server, jobs, 64, SECONDS, WARM_UP))
        # What is shared has no name: nothing can be left in /dev/shm, whoever dies.
        assert not named_memory(server.pids())
        assert server.stop() == 0
    assert soak.wrong == []
    asked = {(job.model, job.encoding) for job in jobs}
    assert set(soak.answered) == asked
    # Memory still settles after a second: that is judged by the long run. What
    # can be counted may not grow at all.
    assert [g for g in growth([u for _, u in soak.usage]) if "memory" not in g] == []


def test_growth_is_seen() -> None:
    steady = Usage(2, 8, 100, 1.0, 200 << 20, 150 << 20)
    assert growth([steady] * 4) == []
    assert growth([]) == []
    leaking = [replace(steady, descriptors=100 + n) for n in range(4)]
    assert "descriptors" in growth(leaking)[0]
    growing = [replace(steady, rss=(200 + 10 * n) << 20) for n in range(4)]
    assert "memory" in growth(growing)[0]
    threads = [replace(steady, threads=8 + n) for n in range(4)]
    assert "threads" in growth(threads)[0]


def test_a_soak_without_answers_has_failed() -> None:
    assert Soak().complaints() == ["no request was answered"]
