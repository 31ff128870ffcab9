"""`popgate drain`: a server that is taken out of service, with a request in flight."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.app.served import ServedGateway, run_popgate
from tests.engine import models
from tests.support import WAIT, until

BODY = json.dumps({"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}).encode()
HEAD = (
    b"POST /v1/models/affine/infer HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
)


def test_a_server_that_is_taken_out_of_service(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    managed = tmp_path / "manage.sock"
    options = ["--management-socket", str(managed)]
    with ServedGateway(tmp_path, *options, POPGATE_TRUST_LOOPBACK="") as served:
        served.wait_ready()
        assert served.client.get("/v1/health/startup").json() == {"started": True}
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), WAIT) as connection:
            connection.sendall(HEAD + BODY[:10])
            served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])  # behind that head

            refused = run_popgate("drain", served.url)
            assert refused.returncode == 1
            assert "403" in refused.stderr or "management" in refused.stderr
            assert served.client.get("/v1/health/ready").status_code == 200

            ended = run_popgate("drain", f"unix:{managed}", "--timeout", "0")
            assert ended.returncode == 1, ended.stderr
            assert "1 in flight" in ended.stderr
            assert "error: 1 request is in flight after 0 s" in ended.stderr

            answer = served.client.get("/v1/health/ready")
            assert answer.status_code == 503
            assert answer.json()["reasons"] == ["the gateway is drained"]
            assert served.client.get("/v1/health/startup").status_code == 200
            # What comes all the same is answered, as the last of its connection.
            path = "/v1/models/affine/infer"
            headers = {"content-type": "application/json"}

            def last() -> bool:
                late = served.client.post(path, content=BODY, headers=headers)
                assert late.status_code == 200
                return "close" in late.headers.get("connection", "")

            until(last)
            connection.sendall(BODY[10:])
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        ended = run_popgate("drain", f"unix://{managed}")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout == "drained: nothing is in flight\n"
        assert served.stop() == 0


def test_nobody_there() -> None:
    ended = run_popgate("drain", "http://127.0.0.1:9", "--timeout", "0")
    assert ended.returncode == 1
    assert "no answer from http://127.0.0.1:9" in ended.stderr
    assert run_popgate("drain", "ftp://nowhere").returncode == 2
