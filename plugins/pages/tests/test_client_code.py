"""The program of a model's page, run as it stands."""

from __future__ import annotations

import ast
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from tests.app.served import ROOT, ServedGateway
from tests.engine import models


def run(program: str, folder: Path, **variables: str) -> str:
    file = folder / "client.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), **variables},
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


COUNT = """
class Count:
    inputs = {"n": "INT32[1]"}
    outputs = {"i": "INT32[1]"}
    def __call__(self, n):
        for i in range(3):
            yield {"i": [i]}
"""
SUM = """
class Sum:
    inputs = {"x": "FP32[1]", "total": "FP32[1]", "id": "ID[1]"}
    outputs = {"y": "FP32[1]", "after": "FP32[1]"}
    def __call__(self, x, total, id):
        return {"y": x + total, "after": x + total}
"""
SEQUENCE = """
[sequence]
correlation_id = "id"
[[sequence.state]]
input = "total"
output = "after"
"""


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """Models with sequences and of several responses, with keys, on a socket, below a
    base path."""
    root = tmp_path_factory.mktemp("models")
    for name, text, config in (
        ("count", COUNT, ""),
        ("sum", SUM.replace("ID", "UINT64"), SEQUENCE),
        ("named", SUM.replace("ID", "BYTES"), SEQUENCE),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(text)
        (root / name / "config.toml").write_text(config)
    options = ["--allow-python", "--uds", str(root / "s"), "--base-path", "/base"]
    with ServedGateway(root, *options, "--api-key", "secret") as gateway:
        gateway.client.headers["X-API-Key"] = "secret"
        yield gateway.wait_ready()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("count", "[0]\ni INT32 [1]\n[1]\ni INT32 [1]\n[2]"),
        ("sum", "y FP32 [1]\n[2.]"),
        ("named", "y FP32 [1]\n[2.]"),
    ],
)
def test_states_streams_sockets_and_keys(
    states: ServedGateway, tmp_path: Path, name: str, said: str
) -> None:
    for path in ("", "/base"):
        answer = states.client.get(f"{path}/v1/models/{name}/client.py")
        assert f"unix:{states.url.removeprefix('unix:')}:/base" in answer.text
        assert said in run(answer.text, tmp_path, POPGATE_KEY="secret")


@pytest.mark.parametrize("name", ["sum", "named"])
def test_examples_of_sequences_work_as_they_stand(
    states: ServedGateway, name: str
) -> None:
    example = states.client.get(f"/v1/models/{name}").json()["example"]
    path = f"/v1/models/{name}/infer"
    assert states.client.post(path, json=example).status_code == 200
    paths = states.client.get("/openapi.json").json()["paths"]
    body = paths[path]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["examples"]) == {"short", "protocol"}
    for each in body["examples"].values():
        answer = states.client.post(path, json=each["value"])
        assert answer.status_code == 200, answer.text


def test_a_base_path_and_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    models.affine(tmp_path / "affine.popef")
    options = ["--tls-cert", str(tmp_path / "server.pem"), "--base-path", "/pg"]
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.wait_line("docs ")
        variables = {"SSL_CERT_FILE": str(tmp_path / "authority.pem")}
        trust = ssl.create_default_context(cafile=variables["SSL_CERT_FILE"])
        for path in ("", "/pg"):
            at = f"{gateway.url}{path}/v1/models/affine/client.py"
            text = httpx.get(at, verify=trust, trust_env=False).text
            assert repr(f"{gateway.url}/pg") in text
            assert "SSL_CERT_FILE" in text
            assert "[[3. 3. 3. 3.]]" in run(text, tmp_path, **variables)
