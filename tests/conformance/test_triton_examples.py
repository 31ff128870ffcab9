"""Clients as Triton's examples are, each as a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.served import ServedGateway
from tests.support import WAIT

EXAMPLES = Path(__file__).parent / "triton_examples"
# It needs a server of another mode.
CONTROL = "simple_http_model_control"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != CONTROL)
# What they do often by themselves, they do less often here.
OPTIONS = {"http_requests": ("--chunks", "20000")}


def run(served: ServedGateway, name: str, *options: str) -> str:
    url = served.url.removeprefix("http://")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "-u", url, *options],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_example(triton: ServedGateway, name: str) -> None:
    assert run(triton, name, *OPTIONS.get(name, ())).startswith("PASS")


def test_sequences_with_identifiers(triton: ServedGateway) -> None:
    name = "simple_http_sequence_sync_infer_client"
    assert run(triton, name, "-d", "-o", "5").startswith("PASS")


def test_model_control(tmp_path: Path) -> None:
    options = ("--profile", "triton", "--cache-dir", str(tmp_path))
    mode = ("--model-control-mode", "explicit", "--metrics-port", "0")
    with ServedGateway(None, *options, *mode) as gateway:
        gateway.wait_line("docs")
        assert run(gateway, CONTROL).startswith("PASS")
