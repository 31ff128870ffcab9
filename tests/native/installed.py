"""An empty virtual environment with one of our wheels, for tests."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import httpx

from tests.support import WAIT

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Return what a command prints; a failure shows all of it."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment; return the folder of its commands.

    The packages that the wheel needs are those of the running environment.
    """
    venv.create(folder, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    options = ("-q", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "install", *options, wheel, cwd=wheel.parent)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # What stands in the .pth files there, this source tree for one, is not taken over.
    others = folder / "lib" / version / "site-packages" / "others.pth"
    others.write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def serves_the_example(binaries: Path, folder: Path) -> None:
    """Check that `popgate serve` of this environment answers a request."""
    model = ROOT / "examples" / "digits" / "digits.onnx"
    options = ("--port", "0", "--cache-dir", folder / "cache", "--devices", "cpu:1")
    server = subprocess.Popen(
        [binaries / "popgate", "serve", model, *options],
        cwd=folder,
        env={"PATH": str(binaries), "POPGATE_POOL": f"test-installed-{folder}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    try:
        assert server.stdout is not None
        for line in server.stdout:
            lines.append(line)
            if found := re.search(r"listens on (http://[\w.:]+)", line):
                break
        else:
            raise AssertionError("".join(lines))
        with httpx.Client(base_url=found[1], timeout=WAIT, trust_env=False) as client:
            while client.get("/v1/health/ready").status_code != 200:
                assert server.poll() is None, "".join(lines)
            (image,) = client.get("/v1/models/digits").json()["inputs"]
            shape = [max(1, size) for size in image["shape"]]
            tensor = {"name": image["name"], "datatype": image["datatype"]}
            tensor |= {"shape": shape, "data": [0.0] * math.prod(shape)}
            body = {"inputs": [tensor]}
            answer = client.post("/v1/models/digits/infer", json=body)
            assert answer.status_code == 200, answer.text
            assert {o["name"] for o in answer.json()["outputs"]} >= {"digit"}
    finally:
        server.terminate()
        server.communicate(timeout=WAIT)
    assert server.returncode == 0
