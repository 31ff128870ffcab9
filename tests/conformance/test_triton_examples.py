"""Clients as Triton's examples are, each as a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.serving import WAIT, ServedGateway

EXAMPLES = Path(__file__).parent / "triton_examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


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
    assert run(triton, name).startswith("PASS")


def test_sequences_with_identifiers(triton: ServedGateway) -> None:
    name = "simple_http_sequence_sync_infer_client"
    assert run(triton, name, "-d", "-o", "5").startswith("PASS")
