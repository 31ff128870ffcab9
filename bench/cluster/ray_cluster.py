"""PopGate on a cluster of Ray's whose nodes are all on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

# Ray reads these at import: no token, no report, and no address but this machine's.
os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

import ray
from ray import serve
from ray.cluster_utils import Cluster

from bench.servers.processes import alive, children, command_line, tree
from bench.servers.server import HOST, free_port
from popgate_ray import deployment

NAME = "popgate"
#: As docs/how-to/scale.md has it: a lost node is missed soon, and each has a process
#: ready.
SETTINGS = {
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 1000,
    "raylet_death_check_interval_milliseconds": 250,
    "enable_worker_prestart": True,
}


class RayCluster:
    """A head with Ray's own processes and its proxy, and two nodes for replicas.

    `settings` are Ray's, of the whole cluster. Use `ray_cluster`, which also cleans up.
    """

    def __init__(self, temporary: Path, settings: dict[str, Any] | None = None) -> None:
        self._node = {"object_store_memory": 80 << 20, "node_ip_address": HOST}
        self.port = free_port()
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                # no replica beside the proxy: it would receive all requests
                "num_cpus": 0,
                "include_dashboard": False,
                "temp_dir": str(temporary),
                "_system_config": SETTINGS if settings is None else settings,
                **self._node,
            },
        )
        self.nodes = [self.cluster.add_node(num_cpus=2, **self._node) for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False)
        serve.start(
            http_options={"host": HOST, "port": self.port}, proxy_location="HeadOnly"
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def run(self, args: dict[str, Any], **options: Any) -> None:
        """Deploy, and return when it is ready."""
        serve.run(deployment.options(**options).bind(args), name=NAME)

    def replicas(self) -> dict[str, dict[str, Any]]:
        """Return Ray's data of the running replicas, by tag."""
        client = serve.context._get_global_client()
        application = client.get_serve_details()["applications"][NAME]
        found = application["deployments"][NAME]["replicas"]
        return {r["replica_id"]: r for r in found if r["state"] == "RUNNING"}

    def kill(self, node: Any) -> None:
        """Kill all processes of the node, as `kill -9` does."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    @contextmanager
    def hung(self, node: Any) -> Iterator[None]:
        """Suspend the node: it neither answers nor refuses. It dies after the block."""
        of_node = [p.process.pid for v in node.all_processes.values() for p in v]
        stopped = [pid for each in of_node for pid in tree(each)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in filter(alive, stopped):
                os.kill(pid, signal.SIGCONT)
            self.kill(node)

    def end(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


@contextmanager
def ray_cluster(settings: dict[str, Any] | None = None) -> Iterator[RayCluster]:
    """Run a cluster that leaves no file behind."""
    # A long path would make the names of Ray's sockets too long.
    temporary = Path(tempfile.mkdtemp(prefix="popgate-ray-", dir="/tmp"))
    # Ray writes the address of the cluster there, but does not make the folder.
    (temporary / "ray").mkdir()
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(temporary)
    try:
        with RayCluster(temporary, settings) as cluster:
            yield cluster
    finally:
        os.environ.pop("RAY_TMPDIR")
        if before is not None:
            os.environ["RAY_TMPDIR"] = before
        shutil.rmtree(temporary, ignore_errors=True)


def devices_of(pid: int) -> set[int]:
    """Return the device processes of a replica."""
    return {p for p in children(pid) if any("engine" in w for w in command_line(p))}


def ready_beside(pid: int) -> set[int]:
    """Return the processes that Ray keeps on the node of a replica and does
    not use yet.
    """
    node = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return {p for p in children(node) if command_line(p)[:1] == ["ray::IDLE"]}
