"""PopGate on Ray Serve, on a cluster of three nodes that is all on this machine.

`make test-ray` installs Ray and runs it. One node has Ray's own processes, and each of
the others a replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import popgate
from app.http.asgi import Message, Receive, Scope, Send
from app.observe.request_ids import HEADER
from tests.app.fronts import Client
from tests.app.served import ROOT, add
from tests.engine import models
from tests.support import until

pytest.importorskip(
    "bench.cluster.ray_cluster", reason="needs popgate[ray]: make test-ray"
)

from ray import serve

from bench.cluster.ray_cluster import (
    SETTINGS,
    RayCluster,
    devices_of,
    ray_cluster,
    ready_beside,
)
from bench.servers.processes import alive
from popgate_ray.replica import (
    GatewayReplica,
    ReplicaFront,
    ScaleByUtilization,
    application,
    deployment,
    replica_settings,
)

# Ray's own threads and sockets, which it leaves to the collector.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

SCALING = ROOT / "docs" / "how-to" / "scale.md"
#: Gives numbers until `n`; after the first each waits for the file to be there.
COUNT = """
import time
from pathlib import Path

class Count:
    inputs = {"n": "INT32[1]", "path": "BYTES[1]"}
    outputs = {"i": "INT32[1]"}

    def load(self, context):
        self.context = context

    def __call__(self, n, path):
        for i in range(int(n[0])):
            yield {"i": [i]}
            while not Path(path[0].decode()).exists() and not self.context.cancelled:
                time.sleep(0.001)
"""
#: Lets requests that come one after the other meet.
MEETING = "max_batch_size = 8\nmax_queue_delay = 0.02\n"


# -- without a cluster


def test_what_a_replica_is_given(tmp_path: Path) -> None:
    settings = replica_settings({"model_repository": str(tmp_path)}, cpus=4)
    assert settings.model_repository == tmp_path
    assert settings.model_control_mode == "poll"
    assert (settings.devices, settings.threads) == ("cpu:1", 3)
    assert replica_settings({}, cpus=0.5).threads == 1
    given = {"model_control_mode": "none", "devices": "cpu:2", "threads": 2}
    stated = replica_settings(given, cpus=8)
    assert stated.model_control_mode == "none"
    assert (stated.devices, stated.threads) == ("cpu:2", 2)


def test_the_environment_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPGATE_THREADS", "5")
    monkeypatch.setenv("POPGATE_MODEL_CONTROL_MODE", "none")
    settings = replica_settings({}, cpus=2)
    assert (settings.threads, settings.model_control_mode) == (5, "none")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"model_control_mode": "managed"}, "only one replica"),
        ({"model_control_mode": "explicit"}, "only one replica"),
        ({"allow_shared_memory": True}, "clients on the same machine"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"threads": "many"}, "threads"),
    ],
)
def test_what_is_refused_before_anything_is_deployed(
    args: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        application(args)


async def spoken(app: Any, path: str) -> tuple[list[Any], bytes]:
    """The headers and the body of what an application answers."""
    client = Client(app, path, method="GET", body=b"")
    await app(client.scope, client._receive, client._send)
    start, *bodies = client.sent
    return start["headers"], b"".join(m["body"] for m in bodies)


def test_metrics_say_of_which_replica_they_are() -> None:
    text = b'# HELP a b\n# TYPE a counter\na{m="1"} 2\nup 1\nlast 3'

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"a", b"b"), (HEADER, b"id")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(0, len(text), 7):  # lines are torn
            part: Message = {"type": "http.response.body", "body": text[at : at + 7]}
            await send({**part, "more_body": at + 7 < len(text)})

    front = ReplicaFront(app, "r1")
    headers, body = asyncio.run(spoken(front, "/metrics"))
    assert headers == [(b"a", b"b")]
    assert body.decode().splitlines() == [
        "# HELP a b",
        "# TYPE a counter",
        'a{replica="r1",m="1"} 2',
        'up{replica="r1"} 1',
        'last{replica="r1"} 3',
    ]
    assert asyncio.run(spoken(front, "/other"))[1] == text


class Context:
    """What a policy is asked with, as far as ours looks."""

    target_num_replicas = 3

    def __init__(self, **shares: float) -> None:
        self.aggregated_metrics = {"utilization": shares} if shares else {}


def test_replicas_by_utilization() -> None:
    scale = ScaleByUtilization(target=0.5)
    assert scale(Context(a=1.0, b=1.0)) == (4.0, {})
    assert scale(Context(a=0.1, b=0.4)) == (1.0, {})
    assert scale(Context()) == (3, {})  # nobody has told yet
    with pytest.raises(ValueError, match="target"):
        ScaleByUtilization(target=70)


def test_a_replica_that_dies_is_missed_soon() -> None:
    """Ray's own period is ten seconds, for which a lost replica is not replaced."""
    config = deployment._deployment_config
    assert config.health_check_period_s == 1
    assert config.health_check_timeout_s == 10


def test_the_docs_have_the_settings_of_the_cluster_here() -> None:
    (said,) = re.findall(r"--system-config='(.+?)'", SCALING.read_text(), re.DOTALL)
    assert json.loads(said) == SETTINGS


# -- on a cluster


class Service:
    """PopGate on a cluster, as its users and Ray's see it."""

    def __init__(self, cluster: RayCluster, root: Path) -> None:
        self.root = root
        self.cluster = cluster
        self.replicas = cluster.replicas
        self.http = httpx.Client(base_url=cluster.url, timeout=60, trust_env=False)

    def run(self, **options: Any) -> None:
        """Deploy, and return when it is ready."""
        args = {
            "model_repository": str(self.root),
            "repository_poll_secs": 0.2,
            "allow_python": True,
        }
        self.cluster.run(args, **options)

    def samples(self, name: str, seen: set[str]) -> dict[str, Any]:
        """The samples of one metric, of all replicas in `seen`, by replica."""
        found: dict[str, Any] = {}

        def ask(_: int) -> None:
            text = self.http.get("/metrics").text
            families = text_string_to_metric_families(text)
            samples = [s for f in families for s in f.samples if s.name == name]
            assert samples, text
            found[samples[0].labels["replica"]] = samples

        def asked() -> bool:
            # Side by side, else all of them reach the same replica.
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(ask, range(8)))
            return set(found) >= seen

        until(asked, f"not all of {seen} gave {name}")
        return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("models")
    add(root, "affine", models.affine)
    add(root, "meeting", models.affine, config=MEETING)
    (root / "count" / "1").mkdir(parents=True)
    (root / "count" / "1" / "model.py").write_text(COUNT)
    shared = set(os.listdir("/dev/shm"))
    pids: set[int] = set()
    with ray_cluster() as cluster:
        found = Service(cluster, root)
        found.run(num_replicas=2, ray_actor_options={"num_cpus": 1})
        pids |= processes(found)
        with found.http:
            yield found
        pids |= processes(found)
    assert len(pids) >= 4
    until(lambda: not any(map(alive, pids)), f"some of {pids} are left")
    until(lambda: "/ray-" not in Path("/proc/net/unix").read_text())
    assert set(os.listdir("/dev/shm")) <= shared


def processes(service: Service) -> set[int]:
    """Replicas and their devices."""
    pids = {r["pid"] for r in service.replicas().values()}
    return pids | {device for pid in pids for device in devices_of(pid)}


def infer(service: Service, value: float, name: str = "affine") -> httpx.Response:
    body = {"inputs": {"input": [[value] * 4]}}
    return service.http.post(f"/v1/models/{name}/infer", json=body)


def test_both_nodes_answer_rightly(service: Service) -> None:
    replicas = service.replicas()
    assert len({r["node_id"] for r in replicas.values()}) == 2

    def ask(value: float) -> None:
        answer = infer(service, value)
        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["outputs"]
        assert output["data"] == [2.0 * value + 1] * 4
        assert "," not in answer.headers["x-request-id"]

    def have_answered() -> bool:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(16)))
        counts = service.samples("nv_inference_request_success_total", set(replicas))
        return all(max(s.value for s in each) > 0 for each in counts.values())

    until(have_answered)


def test_batches_form_in_a_replica(service: Service) -> None:
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            assert infer(service, 1, "meeting").status_code == 200

    def largest() -> float:
        counted = ("nv_inference_count_total", "nv_inference_exec_count_total")
        rows: dict[str, float]
        runs: dict[str, float]
        rows, runs = (
            {
                tag: sum(s.value for s in samples if s.labels["model"] == "meeting")
                for tag, samples in service.samples(name, set()).items()
            }
            for name in counted
        )
        return max(rows[t] / max(1.0, runs.get(t, rows[t])) for t in rows)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: largest() > 1.5, "requests do not meet in batches")
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def test_streams_are_not_collected(service: Service, tmp_path: Path) -> None:
    """The second response is made only when the first has been read."""
    path = tmp_path / "go"
    body = {"inputs": {"n": [3], "path": [str(path)]}}
    headers = {"Accept": "text/event-stream"}
    url = "/v2/models/count/infer"
    with service.http.stream("POST", url, json=body, headers=headers) as response:
        events = (line for line in response.iter_lines() if line.startswith("data: "))
        first = json.loads(next(events)[6:])
        assert first["outputs"][0]["data"] == [0]
        path.touch()
        rest = [json.loads(line[6:])["outputs"][0]["data"][0] for line in events]
    assert rest == [1, 2]


def test_a_client_that_goes_is_counted(service: Service, tmp_path: Path) -> None:
    body = {"inputs": {"n": [3], "path": [str(tmp_path / "never")]}}
    headers = {"Accept": "text/event-stream"}
    url = "/v2/models/count/infer"
    with service.http.stream("POST", url, json=body, headers=headers) as response:
        assert next(response.iter_lines()).startswith("data: ")

    def counted() -> bool:
        failures = service.samples(
            "nv_inference_request_failure_total", set(service.replicas())
        )
        cancelled = [
            sample.value
            for samples in failures.values()
            for sample in samples
            if sample.labels["model"] == "count"
            and sample.labels["reason"] == "CANCELED"
        ]
        return cancelled.count(1.0) == 1

    until(counted)


def test_models_change_by_the_folder_only(service: Service) -> None:
    for path in (
        "/v1/models/affine/unload",
        "/v2/repository/models/affine/load",
        "/v2/logging",
        "/v2/models/affine/trace/setting",
    ):
        answer = service.http.post(path, json={})
        assert answer.status_code == 503, answer.text
        assert answer.json()["code"] == "model_control"
        assert "change the model repository" in answer.json()["error"]
    assert service.http.get("/v2/logging").status_code == 200
    add(service.root, "later", models.affine)
    replicas = set(service.replicas())

    def is_everywhere() -> bool:
        sizes = service.samples("popgate_model_bytes", replicas)
        return all(
            any(sample.labels["model"] == "later" for sample in samples)
            for samples in sizes.values()
        )

    until(is_everywhere)
    assert infer(service, 2, "later").json()["outputs"][0]["data"] == [5.0] * 4


def test_a_node_that_dies_costs_no_request(service: Service) -> None:
    """Ray's proxy answers 500 for the replica that it loses; the client asks again.
    The one in its place takes over a process that was ready."""
    before = service.replicas()
    node = service.cluster.nodes[-1]
    dead = [tag for tag, r in before.items() if r["node_id"] == node.node_id]
    assert len(dead) == 1
    pid = before[dead[0]]["pid"]
    (other,) = (r["pid"] for tag, r in before.items() if tag != dead[0])
    until(lambda: ready_beside(other), "Ray keeps no process ready")
    ready = ready_beside(other)
    lost = {pid, *devices_of(pid)}
    assert len(lost) >= 2
    ends = threading.Event()
    answers: Counter[int] = Counter()
    failures: list[Exception] = []

    def ask(index: int) -> None:
        with popgate.Client(service.cluster.url, retries=10, idempotent=True) as client:
            value = np.full((1, 4), index, np.float32)
            while not ends.is_set():
                try:
                    outputs = client.infer("affine", value)
                except Exception as e:
                    failures.append(e)
                    return
                assert (outputs["output"] == 2 * index + 1).all()
                answers[index] += 1

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: failures or min(answers[i] for i in range(4)) > 20)
        service.cluster.kill(node)
        until(
            lambda: failures or len(set(service.replicas()) - set(dead)) == 2,
            "no replica in place of the lost one",
        )
        there = answers.copy()
        until(lambda: failures or all(answers[i] > there[i] + 20 for i in range(4)))
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert ready & {r["pid"] for r in service.replicas().values()}
    until(lambda: not any(map(alive, lost)), f"some of {lost} are left")


def test_a_busy_replica_gets_help(service: Service) -> None:
    """One replica that is asked for all it can do becomes two, by its utilization."""
    service.run(
        ray_actor_options={"num_cpus": 1},
        num_replicas=None,
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": 2,
            "initial_replicas": 1,
            "upscale_delay_s": 0.0,
            "downscale_delay_s": 600.0,
            "metrics_interval_s": 0.5,
            "look_back_period_s": 2.0,
            "policy": {
                "policy_function": "popgate_ray:ScaleByUtilization",
                "policy_kwargs": {"target": 0.1},
            },
        },
    )
    until(lambda: len(service.replicas()) == 1)
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            with contextlib.suppress(httpx.HTTPError):
                infer(service, 1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(service.replicas()) == 2, "it got no help")
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def test_a_replica_that_can_serve_nothing_is_not_taken(
    service: Service, tmp_path: Path
) -> None:
    """Deploying fails with the reason, not with a service that answers errors."""
    (tmp_path / "broken.popef").write_bytes(b"no model")
    options = deployment.options(
        name="broken", ray_actor_options={"num_cpus": 0}, max_constructor_retry_count=1
    )
    args = {"model_repository": str(tmp_path)}
    with pytest.raises(RuntimeError, match="Deploying application broken failed"):
        serve.run(options.bind(args), name="broken", route_prefix="/broken")
    status = serve.status().applications["broken"].deployments["broken"]
    assert "no model could be loaded" in status.message
    serve.delete("broken")


def test_it_is_made_by_ray_only() -> None:
    with pytest.raises(Exception, match="get_replica_context"):
        GatewayReplica({})
