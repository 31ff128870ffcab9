"""Two servers behind each proxy of `deploy/`, restarted under load: no request fails.

The recipes: deploy/nginx, deploy/haproxy, deploy/caddy.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.app.served import ROOT, ServedGateway, add
from tests.support import WAIT, until

DEPLOY = ROOT / "deploy"
CLIENTS = 8
#: Seconds between two requests of a client. Without it they take both cores from the
#: tests beside this one, as httpx would.
PAUSE = 0.01
#: How many requests a proxy has to pass on at least.
REQUESTS = 3_000
PATH = {"PATH": os.environ["PATH"]}
BODY = b'{"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}'
HEADERS = {"Content-Type": "application/json"}


def nginx(folder: Path, port: int) -> list[str]:
    text = (DEPLOY / "nginx" / "popgate.conf").read_text()
    text = re.sub(r"(?m)^ +ssl_.*$", "", text)
    text = text.replace("443 ssl", f"127.0.0.1:{port}")
    paths = " ".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = folder / "nginx.conf"
    whole.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {paths}\n{text} }}"
    )
    return ["nginx", "-e", f"{folder}/error.log", "-c", str(whole)]


def haproxy(folder: Path, port: int) -> list[str]:
    text = (DEPLOY / "haproxy" / "popgate.cfg").read_text()
    whole = folder / "haproxy.cfg"
    bind = re.compile(r"bind :443 .*")
    whole.write_text(bind.sub(f"bind 127.0.0.1:{port}", text))
    return ["haproxy", "-db", "-f", str(whole)]


def caddy(folder: Path, port: int) -> list[str]:
    text = (DEPLOY / "caddy" / "Caddyfile").read_text()
    whole = folder / "Caddyfile"
    site = f"http://127.0.0.1:{port} {{"
    text = text.replace("models.example.com {", site)
    whole.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + text)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(whole)]


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Load:
    """Clients that keep their connections, and the statuses that they have seen."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: list[int | str] = []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        with contextlib.closing(client):
            while not self._ends.wait(PAUSE):
                try:
                    client.request("POST", "/v1/models/affine/infer", BODY, HEADERS)
                    answer = client.getresponse()
                    text = answer.read().decode()
                except (http.client.HTTPException, OSError) as e:
                    client.close()  # the next request connects
                    self.seen.append(repr(e))
                else:
                    self.seen.append(200 if answer.status == 200 else text)

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("proxy", [nginx, haproxy, caddy])
def test_no_request_fails_in_a_rolling_restart(
    tmp_path: Path, proxy: Callable[[Path, int], list[str]]
) -> None:
    if shutil.which(proxy.__name__) is None:
        pytest.skip(f"{proxy.__name__} is not installed")
    models = tmp_path / "models"
    add(models, "affine")
    *ports, front = free_ports(3)

    def start(port: int) -> ServedGateway:
        options = ("--port", str(port), "--drain-grace", "3", "--devices", "cpu:1")
        cache = ("--cache-dir", str(tmp_path / f"cache-{port}"))
        return ServedGateway(models, *options, *cache).wait_ready()

    command = proxy(tmp_path, front)
    for name in (
        tmp_path / "nginx.conf",
        tmp_path / "haproxy.cfg",
        tmp_path / "Caddyfile",
    ):
        if name.exists():
            text = name.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{ports[0]}")
            name.write_text(text.replace("127.0.0.1:8001", f"127.0.0.1:{ports[1]}"))
    servers = [start(port) for port in ports]
    log = (tmp_path / "proxy.log").open("w")
    running = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={"HOME": str(tmp_path)} | PATH,
    )
    load: Load | None = None
    try:
        url = f"http://127.0.0.1:{front}"
        until(lambda: answers(url), "the proxy does not answer")
        load = Load(front)
        for i, port in enumerate(ports):
            until(lambda: len(load.seen) > 200 * (i + 1))  # noqa: B023
            servers[i].client.close()
            assert servers[i].stop() == 0
            servers[i] = start(port)
            # The proxy sees that it is ready again before the other one ends.
            until(lambda: served(servers[i]) > 20)  # noqa: B023
        until(lambda: len(load.seen) >= REQUESTS)
    finally:
        if load is not None:
            load.end()
        running.terminate()
        running.wait(WAIT)
        log.close()
        for server in servers:
            server.__exit__()
    failed = [each for each in load.seen if each != 200]
    assert failed == [], (len(load.seen), failed[:5])


def answers(url: str) -> bool:
    try:
        answer = httpx.post(
            f"{url}/v1/models/affine/infer",
            content=BODY,
            headers=HEADERS,
            timeout=WAIT,
            trust_env=False,
        )
    except httpx.TransportError:
        return False
    return answer.status_code == 200


def served(gateway: ServedGateway) -> int:
    """Return how many requests a server has answered."""
    stats = gateway.client.get("/v2/models/affine/stats").json()
    return int(stats["model_stats"][0]["inference_count"])
