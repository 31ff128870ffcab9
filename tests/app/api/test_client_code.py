"""The program of a model's page, run as it stands."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.app.served import ROOT, ServedGateway


def run(program: str, folder: Path) -> str:
    file = folder / "client.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("affine", "output FP32 [1, 4]\n[[3. 3. 3. 3.]]"),
        ("text", "output BYTES [1]\n[b'1!']"),
        ("weighted", "output FP32 [2, 3]"),
        ("many/versions/1", "output FP32 "),
    ],
)
def test_it_runs(gateway: ServedGateway, tmp_path: Path, name: str, said: str) -> None:
    answer = gateway.client.get(f"/v1/models/{name}/client.py")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/x-python; charset=utf-8"
    assert repr(gateway.url) in answer.text
    assert said in run(answer.text, tmp_path)


def test_whatever_the_host_is_called(gateway: ServedGateway) -> None:
    """It is the reader's own header, and stays a text of the program."""
    with httpx.Client(base_url=gateway.url, trust_env=False) as client:
        host = 'x"""+quit()+"""'
        answer = client.get("/v1/models/affine/client.py", headers={"Host": host})
    assert answer.status_code == 200
    names = {
        node.id
        for node in ast.walk(ast.parse(answer.text))
        if isinstance(node, ast.Name)
    }
    assert "quit" not in names


def test_models_that_are_not_there(gateway: ServedGateway) -> None:
    assert gateway.client.get("/v1/models/none/client.py").status_code == 404
    assert gateway.client.get("/v1/models/broken/client.py").status_code == 503
    path = "/v1/models/many/versions/9/client.py"
    assert gateway.client.get(path).status_code == 404
