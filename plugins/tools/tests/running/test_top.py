"""`popgate top`, once: what it shows of a gateway, and what it says of none."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from popgate_client import Client
from popgate_tools.running.top import Screen
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
    ended = run_popgate("top", "--interval", "inf")
    assert (ended.returncode, "Invalid value" in ended.stderr) == (2, True)


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


class Busy(Client):
    """A client of a server with 30 models, and devices."""

    devices = 2

    def ask(self, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        model = {"version": "1", "state": "READY", "ready": True, "instances": 1}
        device = {"state": "ready", "models": 3, "in_flight": 0, "threads": 1}
        request = {
            "model": "m",
            "id": "x",
            "total_ms": 1,
            "status": 200,
            "rows": 1,
            "error": "",
        }
        numbers = range(self.devices)
        return {
            "/v1/models": {"models": [{"name": f"m{n}", **model} for n in range(30)]},
            "/v1/devices": {
                "devices": [{"id": f"cpu:{n}", "restarts": 0} | device for n in numbers]
            },
            "/v2/models/stats": {"model_stats": []},
        }.get(path) or {
            "answered": 10
            * [{"at": 0.0, "batch_rows": 1, "phases": {"queue": 1}} | request],
            "failed": [],
        }


@pytest.mark.parametrize(
    ("height", "devices", "counts"),
    [
        (24, 2, (4, 2, 2)),
        (24, 40, (4, 2, 2)),
        (40, 2, (14, 2, 8)),
        (80, 2, (20, 2, 10)),
    ],
)
def test_all_tables_fit_on_the_screen(
    height: int, devices: int, counts: tuple[int, int, int]
) -> None:
    client = Busy()
    client.devices = devices
    console = Console(file=(out := io.StringIO()), width=80, height=height)
    console.print(Screen(client, "http://x").refresh(height))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert len(lines) <= height
    starts = ("m", "cpu:", time.strftime("%H:", time.localtime(0)))
    rows = [line for line in lines if not line.startswith("model")]
    assert tuple(sum(r.startswith(s) for r in rows) for s in starts) == counts
    assert f"and {30 - counts[0]} more" in lines
    assert (f"and {devices - counts[1]} more" in lines) == (devices > counts[1])
