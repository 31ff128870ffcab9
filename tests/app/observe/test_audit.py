"""Each call that changes the server has a line, whatever the log leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.keys import digest_of
from tests.app.served import ServedGateway
from tests.engine import models

GROUPS = (("ops", "manage"), ("shop", "infer"), ("some", "manage"))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_changed_what(tmp_path: Path, workers: str) -> None:
    models.affine(tmp_path / "affine.popef")
    keys = tmp_path.parent / f"keys-{workers}.toml"
    keys.write_text(
        "".join(
            f"[[key]]\nname = '{name}'\nsha256 = '{digest_of(name.encode()).hex()}'\n"
            f"groups = ['{group}']\n"
            + ("models = ['affine']\n" if name == "some" else "")
            for name, group in (
                ("ops", "manage"),
                ("shop", "infer"),
                ("some", "manage"),
            )
        )
    )
    options = ["--keys", str(keys), "--log-level", "error", "--access-log", "off"]
    options += ["--workers", workers]
    load = "/v2/repository/models/affine/load"
    with ServedGateway(tmp_path, *options) as gateway:
        ask = gateway.wait_ready().client
        calls: tuple[tuple[str, str, dict[str, object], int], ...] = (
            ("ops", "/v1/models/affine/load", {}, 200),
            ("ops", "/v1/models/none/load", {}, 404),
            ("ops", load, {"parameters": 5}, 400),
            ("ops", "/v1/models/affine/unload", {}, 200),
            ("shop", "/v1/drain", {}, 403),
            ("wrong", "/v1/drain", {}, 401),
            ("ops", "/v1/drain", {}, 200),
        )
        for number, (key, path, body, status) in enumerate(calls):
            told = {"x-api-key": key, "x-request-id": f"call-{number}"}
            assert ask.post(path, json=body, headers=told).status_code == status, path
            line = gateway.wait_line(f"request_id=call-{number} ")
            outcome = "done" if status == 200 else "refused"
            assert f"INFO    app.audit: management call {outcome}: " in line
            assert f" path={path} status={status} client=127.0.0.1" in line
            assert (f" key={key} " in f"{line} ") == (key != "wrong")
            assert ("code=" in line) == (status != 200)
        assert ask.get("/v1/models", headers={"x-api-key": "ops"}).status_code == 403
        forged = {"x-api-key": "ops", "x-request-id": "forged"}
        path = "/v1/models/a%0aINFO%20x/load"
        assert ask.post(path, headers=forged).status_code == 404
        line = gateway.wait_line("request_id=forged ")
        assert "path='/v1/models/a\\nINFO x/load'" in line
        # A key for some models names itself when another model is refused to it.
        told = {"x-api-key": "some", "x-request-id": "others"}
        assert ask.post("/v1/models/b/load", headers=told).status_code == 403
        line = gateway.wait_line("request_id=others ")
        assert "management call refused: " in line
        assert " key=some code=key_not_allowed " in line
        assert len([one for one in gateway.lines if "app.audit" in one]) == 9
