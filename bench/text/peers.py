"""Servers of others that bench.text measures beside PopGate."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.servers.processes import alive, tree
from bench.servers.server import Server, free_port

SERVERS = Path(__file__).with_name("peer_servers.py")


class PeerServer(Server):
    """A server that leaves processes behind when it is stopped, as LitServe does."""

    def stop(self) -> int:
        mine = tree(self.pid)
        code = super().stop()
        for pid in mine:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        return code


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of others: its command, and the form of its requests."""

    name: str
    command: Callable[[Path, int], list[str]]
    path: str
    document: Callable[[str], dict[str, Any]]
    health: str

    def start(self, folder: Path) -> Server:
        """Return the server of a model's folder, once it answers."""
        port = free_port()
        server = PeerServer(self.command(folder, port), port, name=self.name)
        try:
            server.wait_ready(300, self.health)
        except BaseException:
            server.stop()
            raise
        return server


def known_peers(fastembed: str | None, infinity: str | None) -> list[Peer]:
    """Return the servers whose environments are named."""
    found = []
    for kind, health in (("fastapi", "/openapi.json"), ("litserve", "/health")):
        if fastembed is None:
            break

        def command(folder: Path, port: int, kind: str = kind) -> list[str]:
            return [str(fastembed), str(SERVERS), kind, str(folder), str(port)]

        name = f"fastembed behind {kind}"
        found.append(Peer(name, command, "/predict", lambda t: {"text": t}, health))
    if infinity is not None:

        def start(folder: Path, port: int) -> list[str]:
            words = ["v2", "--model-id", str(folder), "--engine", "optimum"]
            words += ["--device", "cpu", "--served-model-name", "encoder"]
            words += ["--host", "127.0.0.1", "--port", str(port)]
            return [str(infinity), *words, "--no-model-warmup"]

        found.append(
            Peer(
                "infinity",
                start,
                "/embeddings",
                lambda t: {"model": "encoder", "input": [t]},
                "/health",
            )
        )
    return found
