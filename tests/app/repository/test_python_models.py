"""Models in Python behind HTTP: served where that is allowed, and never from a request.

Covers: app/repository/python_models.py.
"""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.served import ServedGateway, add
from tests.support import until

SCORE = """
import os
from popgate import Model

class Score(Model):
    inputs = {"text": "BYTES[-1]"}
    outputs = {"score": "FP32[-1]", "by": "BYTES[-1]"}
    batching = True

    def load(self, context):
        self.context = context
        self.by = context.config.get("by", "v1")
        print("loaded by", self.by)

    def __call__(self, text):
        if b"die" in list(text):
            os._exit(3)
        if b"bad" in list(text):
            raise ValueError("bad text")
        return {"score": [len(t) for t in text], "by": [self.by] * len(text)}
"""
ROW = [[1.0, 2.0, 3.0, 4.0]]


def write(root: Path, name: str, text: str = SCORE, config: str = "") -> Path:
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (root / name / "config.toml").write_text(config)
    new = root / ".new"
    new.write_text(textwrap.dedent(text))
    return new.rename(folder / "model.py")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def served(live: Path) -> Iterator[ServedGateway]:
    add(live, "onnx")
    write(live, "score", config='parameters = {by = "config"}\n')
    with ServedGateway(live, "--allow-python") as gateway:
        yield gateway.wait_ready()


def manage(gateway: ServedGateway, name: str, verb: str, **body: Any) -> Any:
    return gateway.client.post(f"/v1/models/{name}/{verb}", json=body or None)


def ask(gateway: ServedGateway, name: str, text: str) -> Any:
    return gateway.client.post(
        f"/v1/models/{name}/infer", json={"inputs": {"text": [text]}}
    )


def answer(gateway: ServedGateway, name: str, text: str) -> list[Any]:
    response = ask(gateway, name, text)
    assert response.status_code == 200, response.text
    return [output["data"][0] for output in response.json()["outputs"]]


def processes(gateway: ServedGateway) -> set[int]:
    devices = gateway.client.get("/v1/devices").json()["devices"]
    return {d["pid"] for d in devices if d["id"].startswith("python:")}


def test_a_model_is_served_like_others(served: ServedGateway) -> None:
    assert answer(served, "score", "four") == [4.0, "config"]
    client = served.client
    metadata = client.get("/v2/models/score").json()
    assert metadata["platform"] == "popgate_python"
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert client.get("/v2/models/score/ready").status_code == 200
    config = client.get("/v2/models/score/config").json()
    assert config["backend"] == "python"
    assert config["max_batch_size"] == 64
    (stats,) = client.get("/v2/models/score/stats").json()["model_stats"]
    assert stats["inference_stats"]["success"]["count"] >= 1
    assert "score" in client.get("/openapi.json").text
    served.wait_line("model score/1: loaded by config")


def test_a_row_that_fails_says_where_and_the_log_more(served: ServedGateway) -> None:
    response = ask(served, "score", "bad")
    assert response.status_code == 500
    assert "ValueError: bad text; model.py, line 19, in __call__" in response.text
    code = served.wait_line('raise ValueError("bad text")')
    # The traceback is one record: its further lines are indented.
    first = served.wait_line("engine.python: model score/1: ")
    assert code.startswith("    ")
    assert " ERROR " in served.wait_line("Traceback (most recent call last)")
    assert not [x for x in served.lines if "INFO" in x and "  File " in x], first
    assert answer(served, "score", "x") == [1.0, "config"]


def test_a_process_that_ends_comes_back_by_itself(served: ServedGateway) -> None:
    before = processes(served)
    response = ask(served, "score", "die")
    assert response.status_code == 503
    assert served.infer("onnx", input=ROW)
    until(lambda: ask(served, "score", "x").status_code == 200)
    assert not processes(served) & before


def test_a_new_file_takes_over_and_a_bad_one_does_not(
    live: Path, served: ServedGateway
) -> None:
    write(live, "swapped")
    assert manage(served, "swapped", "load").status_code == 200
    assert answer(served, "swapped", "x") == [1.0, "v1"]
    count = len(processes(served))
    write(live, "swapped", SCORE.replace('"v1"', '"v2"'))
    assert manage(served, "swapped", "load").status_code == 200
    assert answer(served, "swapped", "x") == [1.0, "v2"]
    until(lambda: len(processes(served)) == count)
    write(live, "swapped", SCORE.replace("import os", "import oss"))
    response = manage(served, "swapped", "load")
    assert response.status_code == 400
    expected = "No module named 'oss'; model.py, line 2, in <module>: import oss"
    assert expected in response.json()["error"]
    assert answer(served, "swapped", "x") == [1.0, "v2"]
    index = served.client.post("/v2/repository/index").json()
    assert expected in json.dumps(index)
    assert manage(served, "swapped", "unload").status_code == 200
    until(lambda: len(processes(served)) == count - 1)


def test_instances_are_processes(live: Path, served: ServedGateway) -> None:
    before = processes(served)
    write(live, "several", config="instances = 2\n")
    assert manage(served, "several", "load").status_code == 200
    assert len(processes(served) - before) == 2
    assert manage(served, "several", "unload").status_code == 200
    until(lambda: processes(served) == before)


def test_code_never_comes_with_a_request(served: ServedGateway) -> None:
    code = base64.b64encode(SCORE.encode()).decode()
    for path in ("1/model.py", "model.py"):
        response = served.client.post(
            "/v2/repository/models/brought/load",
            json={"parameters": {"config": "{}", f"file:{path}": code}},
        )
        assert response.status_code == 400, response.text
    (brought,) = (
        model
        for model in served.client.post("/v2/repository/index").json()
        if model["name"] == "brought"
    )
    assert brought["state"] == "UNAVAILABLE"
    assert (
        brought["reason"] == "model.py: PopGate never takes code from the load request"
    )
    for key, value in (("python", "/bin/sh"), ("environment", {"LD_PRELOAD": "x"})):
        config = json.dumps({key: value})
        response = served.client.post(
            "/v2/repository/models/score/load", json={"parameters": {"config": config}}
        )
        assert response.status_code == 400
        assert f"{key} can only be set in the model repository" in response.text
    assert answer(served, "score", "x") == [1.0, "config"]


def test_code_is_not_run_unless_that_is_allowed(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    ran = tmp_path / "ran"
    write(root, "score", f"open({str(ran)!r}, 'w')\n" + textwrap.dedent(SCORE))
    add(root, "onnx")
    with ServedGateway(root) as gateway:
        gateway.wait_ready()
        response = ask(gateway, "score", "x")
        assert response.status_code == 503
        assert "start the server with --allow-python" in response.text
        assert gateway.infer("onnx", input=ROW)
    assert not ran.exists()


def test_changes_are_taken_over_without_a_failed_request(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    write(root, "score", config='parameters = {by = "v1"}\n')
    with ServedGateway(root, "--allow-python", "--reload") as gateway:
        gateway.wait_ready()
        statuses = []

        def answers(by: str) -> bool:
            response = ask(gateway, "score", "x")
            statuses.append(response.status_code)
            return bool(response.json()["outputs"][1]["data"] == [by])

        assert answers("v1")
        write(root, "score", SCORE, 'parameters = {by = "v2"}\n')
        until(lambda: answers("v2"))
        write(root, "score", SCORE.replace("import os", "import oss"))
        said = "failed to load 'score': version 1: "
        line = gateway.wait_line(said)
        assert "No module named 'oss'; model.py, line 2, in <module>" in line
        assert answers("v2")
        changed = SCORE.replace("self.by]", 'self.by + "!"]')
        write(root, "score", changed)
        until(lambda: answers("v2!"))
        assert set(statuses) == {200}


def test_the_server_is_ready_while_each_model_has_a_live_process(
    tmp_path: Path,
) -> None:
    root = tmp_path / "models"
    root.mkdir()
    hold = tmp_path / "hold"
    wait = f"import os, time\nwhile os.path.exists({str(hold)!r}): time.sleep(0.01)\n"
    write(root, "held", wait + textwrap.dedent(SCORE))
    with ServedGateway(root, "--allow-python") as gateway:
        gateway.wait_ready()
        hold.touch()
        assert ask(gateway, "held", "die").status_code == 503
        reasons = gateway.until("/v1/health/ready", 503).json()["reasons"]
        assert reasons == ["devices are lost and being restarted; models: held"]
        hold.unlink()
        gateway.until("/v1/health/ready", 200)
        assert answer(gateway, "held", "x") == [1.0, "v1"]


ALARMS = """
import os, signal

class Alarms:
    inputs = {"x": "INT64[-1]"}
    outputs = {"alarms": "INT64[-1]", "process": "INT64[-1]"}
    alarms = -1

    def __call__(self, x):
        if self.alarms < 0:
            self.alarms = 0
            signal.signal(signal.SIGALRM, self.count)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        return {"alarms": [self.alarms], "process": [os.getpid()]}

    def count(self, *_):
        self.alarms += 1
"""


def test_a_model_may_have_handlers_of_signals(
    live: Path, served: ServedGateway
) -> None:
    """Which interrupt its process while that waits for requests."""
    write(live, "alarms", ALARMS)
    manage(served, "alarms", "load").raise_for_status()
    # On a busy machine some come before the first answer.
    first = served.infer("alarms", x=[0])
    until(lambda: served.infer("alarms", x=[0])["alarms"][0] >= first["alarms"][0] + 5)
    assert served.infer("alarms", x=[0])["process"] == first["process"]
