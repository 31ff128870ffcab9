"""`evaluate.py` against a real gateway: every encoding gives the same digits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from evaluate import ways
from formats import ANSWERS, REQUESTS
from serving import hold_free_port

from tests.warm import forked

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        forked(DIGITS / "evaluate.py", *arguments),
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_ways_have_every_encoding_in_and_out() -> None:
    whole = {(w.request, w.answer) for w in ways(360) if w.images_at_once == 360}
    every = {(request, answer) for request in REQUESTS for answer in ANSWERS}
    assert whole == every - {("npy", "npy")}
    assert {w.request for w in ways(360) if w.images_at_once == 1} == set(REQUESTS)


def test_every_encoding_gives_the_digits_of_the_process(gateway: str) -> None:
    finished = evaluate("--url", gateway, "--images", "60")
    assert finished.returncode == 0, finished.stderr
    assert "In process, with ONNX Runtime: 60/60 = 100.00%" in finished.stdout
    assert finished.stdout.count("60/60 = 100.00%") == len(ways(60)) + 1
    assert "different" not in finished.stdout


def test_script_fails_where_the_model_served_is_another(gateway: str) -> None:
    finished = evaluate("--url", gateway, "--model", "erring", "--images", "40")
    assert finished.returncode == 1
    assert "different" in finished.stdout
    assert "as in process" not in finished.stdout


def test_script_passes_on_what_the_gateway_says(gateway: str) -> None:
    finished = evaluate("--url", gateway, "--model", "unheard-of")
    assert finished.returncode == 1
    assert finished.stderr.startswith("error: ")
    assert "404" in finished.stderr
    assert "unheard-of" in finished.stderr


def test_script_says_that_there_is_no_gateway() -> None:
    with hold_free_port() as nobody:
        port = nobody.getsockname()[1]
        finished = evaluate("--url", f"http://127.0.0.1:{port}")
    assert finished.returncode == 1
    assert "is it running?" in finished.stderr
    assert "Traceback" not in finished.stderr
