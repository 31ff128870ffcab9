"""For whom a trusted proxy asks, and who that is in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.http.proxies import TrustedProxies
from tests.app.served import ServedGateway, run_popgate
from tests.engine import models

PROXIES = TrustedProxies(["10.0.0.0/8", "192.0.2.1", "fd00::/8", "unix"])


@pytest.mark.parametrize(
    ("peer", "name", "value", "client"),
    [
        ("10.1.2.3", "x-forwarded-for", "198.51.100.7", "198.51.100.7"),
        ("10.1.2.3", "x-forwarded-for", "1.1.1.1, 198.51.100.7", "198.51.100.7"),
        ("10.1.2.3", "x-forwarded-for", "198.51.100.7, 10.9.9.9", "198.51.100.7"),
        ("10.1.2.3", "x-forwarded-for", "10.8.8.8,10.9.9.9", "10.8.8.8"),
        ("10.1.2.3", "x-forwarded-for", "evil, 10.9.9.9", "10.9.9.9"),
        ("10.1.2.3", "x-forwarded-for", "", "10.1.2.3"),
        ("10.1.2.3", "x-forwarded-for", "198.51.100.7:4711", "198.51.100.7"),
        ("10.1.2.3", "x-forwarded-for", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.1.2.3", "x-forwarded-for", "198.51.100.7", "198.51.100.7"),
        ("192.0.2.1", "forwarded", "for=198.51.100.7;proto=https", "198.51.100.7"),
        ("fd00::1", "forwarded", 'For="[2001:db8::1]:80", for=10.0.0.1', "2001:db8::1"),
        ("192.0.2.1", "forwarded", "for=_hidden", "192.0.2.1"),
        ("", "x-forwarded-for", "198.51.100.7", "198.51.100.7"),
        ("192.0.2.2", "x-forwarded-for", "198.51.100.7", "192.0.2.2"),
        ("192.0.2.2", "forwarded", "for=198.51.100.7", "192.0.2.2"),
        ("no address", "forwarded", "for=198.51.100.7", "no address"),
    ],
)
def test_whom_a_proxy_names(peer: str, name: str, value: str, client: str) -> None:
    assert PROXIES.client_of(peer, {name.encode(): value.encode()}) == client
    assert TrustedProxies().client_of(peer, {name.encode(): value.encode()}) == peer
    assert not TrustedProxies().are_there


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_log_names_the_client(tmp_path: Path, workers: str) -> None:
    models.affine(tmp_path / "affine.popef")
    options = ("--access-log", "all", "--workers", workers)
    told = {"x-forwarded-for": "198.51.100.7"}
    body = {"inputs": {"input": [[1, 2, 3, 4]]}}
    for trusted, client in (("127.0.0.0/8", "198.51.100.7"), ("10.0.0.1", "127.0.0.1")):
        more = ("--trusted-proxy", trusted)
        with ServedGateway(tmp_path, *options, *more) as gateway:
            ask = gateway.wait_ready().client
            ask.headers.update(told)
            assert ask.post("/v1/models/affine/infer", json=body).status_code == 200
            assert ask.get("/v1/models").status_code == 200
            assert ask.post("/v1/models/none/infer", json=body).status_code == 404
            for path in ("affine/infer 200", "none/infer 404"):
                line = gateway.wait_line(f"POST /v1/models/{path}")
                assert f" client={client} " in line
            assert f" client={client}" in gateway.wait_line("GET /v1/models 200")


def test_what_is_no_address_is_said(tmp_path: Path) -> None:
    options = ("--trusted-proxy", "proxy.example", "--port", "0")
    done = run_popgate("serve", "-m", tmp_path, *options)
    assert done.returncode == 2
    assert "'proxy.example' does not appear to be" in done.stderr
    assert "Traceback" not in done.stderr
