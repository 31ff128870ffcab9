"""`popgate top`, once: what it shows of a gateway, and what it says of none."""

from __future__ import annotations

from pathlib import Path

from tests.app.cli.terminal import in_terminal
from tests.app.served import ServedGateway, run_popgate
from tests.engine import models

KEYS = """
[[key]]
name = "ops"
sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
groups = ["metadata"]
"""


def test_what_a_gateway_does(gateway: ServedGateway) -> None:
    gateway.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])
    wrong = gateway.client.post("/v1/models/affine/infer", content=b"{")
    options = ["--url", gateway.url, "--once", "--interval", "0.1"]
    seen = in_terminal("top", *options)
    assert seen.code == 0, seen.lines
    text = "\n".join(seen.lines)
    assert "requests a second" in text
    row = next(line for line in seen.lines if line.strip().startswith("broken"))
    assert "unavailable" in row
    row = next(line for line in seen.lines if line.strip().startswith("cpu:"))
    assert "ready" in row
    assert wrong.headers["x-request-id"] in text
    assert "━━━" in text


def test_no_gateway() -> None:
    ended = run_popgate("top", "--url", "http://127.0.0.1:9")
    assert ended.returncode == 1
    assert "no answer from http://127.0.0.1:9" in ended.stderr
    assert "that `popgate serve` runs there" in ended.stderr
    ended = run_popgate("top", "--url", "ftp://nowhere")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def test_a_gateway_that_wants_a_key(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    (tmp_path / "keys.toml").write_text(KEYS)
    keys = str(tmp_path / "keys.toml")
    with ServedGateway(tmp_path, "--keys", keys, "--no-pages") as served:
        served.wait_ready()
        options = ["top", "--url", served.url, "--once", "--interval", "0.1"]
        ended = run_popgate(*options)
        assert ended.returncode == 1
        assert "an API key is required" in ended.stderr
        ended = run_popgate(*options, POPGATE_KEY="secret")
        assert ended.returncode == 0, ended.stderr
        assert "affine" in ended.stdout
