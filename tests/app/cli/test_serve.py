"""`popgate serve` with options that cannot be: explained, nothing started.

Covers: app/cli/errors.py, app/cli/settings_options.py, app/cli/startup_report.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
from pathlib import Path

import pytest

from app.cli.errors import CommandError
from app.cli.settings_options import settings_of
from app.cli.startup_report import say
from app.http.sockets import listen_tcp
from app.settings import Settings
from tests.app.cli.calls import Call
from tests.app.served import ServedGateway, run_popgate
from tests.engine import models
from tests.support import until


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-m", "/nowhere/at/all"], "the folder /nowhere/at/all"),
        (["gone.onnx"], "the file or folder gone.onnx"),
        (["/"], "popgate serve takes one folder of models, got "),
        (["--port", "0", "--devices", "gpu:1"], "invalid devices 'gpu:1'"),
        (["--device-wait", "soon"], "--device-wait: 'soon' must be no-wait"),
        (["--port", "70000"], "--port must be at most 65535, got '70000'"),
        (["--port", "x"], "--port must be a whole number, got 'x'"),
        (["--max-body-size", "huge"], "--max-body-size: 'huge' is not a size"),
        (["--request-timeout", "0"], "--request-timeout must be more than 0, got '0'"),
        (["--request-timeout", "soon"], "must be a number, got 'soon'"),
        (["--log-level", "loud"], "--log-level must be 'debug', 'info', 'warning'"),
        (["--api-key", ""], "--api-key: an empty key protects nothing"),
        (["--allow-origin", "shop.example"], "'shop.example' must be * or an origin"),
        (
            ["--allow-origin", "http://a/b"],
            "--allow-origin: 'http://a/b' must be * or an origin",
        ),
        (["--host", "no.such.invalid"], "cannot listen on host 'no.such.invalid'"),
        (["--host", "203.0.113.7"], "this machine has no such address; choose another"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_options(
    popgate: Call, tmp_path: Path, options: list[str], text: str
) -> None:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    done = popgate("serve", "-m", tmp_path, *options)
    assert done.code == 2
    assert (root.level, root.handlers) == before
    assert text in done.err
    assert done.out == ""


def test_wrong_environment(
    popgate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPGATE_PORT", "many")
    done = popgate("serve", "-m", tmp_path)
    assert done.code == 2
    assert "POPGATE_PORT must be a whole number, got 'many'" in done.err
    monkeypatch.setenv("POPGATE_LAZY", "perhaps")
    done = popgate("serve", "-m", tmp_path, "--port", "0")
    assert "POPGATE_LAZY must be true or false, got 'perhaps'" in done.err
    monkeypatch.delenv("POPGATE_LAZY")
    monkeypatch.setenv("POPGATE_RESTRICTED_API", "[]]")
    done = popgate("serve", "-m", tmp_path, "--port", "0")
    assert done.code == 2
    assert "POPGATE_RESTRICTED_API: several restrictions are written" in done.err


def test_the_port_that_kubernetes_sets_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sets this variable in each pod beside a service called popgate."""
    monkeypatch.setenv("POPGATE_PORT", "tcp://10.0.0.1:9000")
    assert settings_of({}).port == 8000


def test_misspelt_variables_are_told(
    popgate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPGATE_MAX_BDY_SIZE", "3")
    monkeypatch.setenv("POPGATE_WHATEVER", "3")
    monkeypatch.setenv("POPGATE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("POPGATE_PORT_8000_TCP", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("POPGATE_POOL", "mine")
    done = popgate("serve", "-m", tmp_path, "--port", "x")
    told = [line for line in done.err.splitlines() if "warning" in line]
    none = "is not a setting and has no effect"
    meant = "; did you mean POPGATE_MAX_BODY_SIZE?"
    assert told == [
        f"popgate: warning: POPGATE_MAX_BDY_SIZE {none}{meant}",
        f"popgate: warning: POPGATE_WHATEVER {none}",
    ]


def test_an_option_wins_over_the_environment(
    popgate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPGATE_LOAD_THREADS", "0")
    monkeypatch.setenv("POPGATE_RESTRICTED_API", '["anything"]')
    error = popgate("serve", "-m", tmp_path, "--load-threads", "2").err
    assert "load" not in error.lower()
    assert "POPGATE_RESTRICTED_API: a restriction is written" in error
    rule = "logging:key=value"
    options = ("--http-restricted-api", rule, "--restricted-api", rule)
    error = popgate("serve", "-m", tmp_path, *options).err
    assert "POPGATE_LOAD_THREADS must be at least 1, got " in error
    assert "--restricted-api: a restriction names 'logging' twice" in error


def test_the_help_names_every_setting(popgate: Call) -> None:
    shown = popgate("serve", "--help")
    assert shown.code == 0
    for name in Settings.model_fields:
        assert f" --{name.replace('_', '-')} " in shown.out.replace(",", " ")
    assert "[default: 8000]" in shown.out
    assert "asked|always|never" in shown.out


def test_a_port_in_use(popgate: Call, tmp_path: Path) -> None:
    with contextlib.closing(listen_tcp("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = popgate("serve", "-m", tmp_path, "--port", port)
    assert done.code == 2
    assert f"127.0.0.1:{port}: it is in use by another process" in done.err
    assert "--port" in done.err


def test_an_interrupt_is_not_lost_while_it_starts(
    popgate: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def starting(given: object) -> None:
        seen.append(signal.getsignal(signal.SIGINT))
        raise CommandError("enough")

    monkeypatch.setattr("app.cli.settings_options.settings_of", starting)
    before = signal.getsignal(signal.SIGINT)
    assert popgate("serve").err == "popgate: error: enough\n"
    assert seen == [signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_server_outlives_who_reads_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        for line in ("PopGate listens", "a device"):
            say(line)
    monkeypatch.setattr("sys.stdout", None)
    say("what a daemon says")


TWICE = """
class Twice:
    inputs = {"x": "FP32[-1]"}
    outputs = {"y": "FP32[-1]"}
    def __call__(self, x):
        return {"y": x * 2}
"""


def test_one_python_file_is_a_model(tmp_path: Path) -> None:
    """It is loaded again when it changes; without --allow-python it is not run."""
    file = tmp_path / "rank.py"
    file.write_text(TWICE)
    body = {"inputs": {"x": [1.5]}}
    path = "/v1/models/ranker/infer"
    with ServedGateway(None, f"ranker={file}", "--allow-python", "--reload") as served:
        served.wait_ready()
        answer = served.client.post(path, json=body)
        assert answer.json()["outputs"][0]["data"] == [3]
        file.write_text(TWICE.replace("* 2", "* 4"))

        def is_new() -> bool:
            answer = served.client.post(path, json=body)
            return bool(answer.json()["outputs"][0]["data"] == [6])

        until(is_new)
    with ServedGateway(None, str(file)) as served:
        served.wait_line("--allow-python")
        assert served.client.get("/v1/models/rank").json()["ready"] is False


def test_weights_of_hugging_face_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    ended = run_popgate("serve", tmp_path, "--port", "0")
    assert ended.returncode == 2
    assert "is a Hugging Face folder" in ended.stderr
    assert "docs/how-to/bring-a-model.md" in ended.stderr


def test_a_log_of_json_has_nothing_plain(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    keys = tmp_path / "keys.toml"
    keys.write_text('anonymous = ["metadata", "pages"]')
    keys.chmod(0o644)  # a warning before the server listens
    options = ("--log-format", "json", "--metrics-port", "0", "--keys", str(keys))
    with ServedGateway(tmp_path, *options, POPGATE_NONSENSE="1") as gateway:
        gateway.wait_ready()
        gateway.wait_line("manage ")
        assert gateway.stop() == 0
        lines = [json.loads(line) for line in gateway.lines]
    said = {line["message"].split()[0]: line for line in lines}
    assert said["POPGATE_NONSENSE"]["level"] == "warning"
    assert said["PopGate"]["logger"] == "app.start"
    assert said[str(keys)]["level"] == "warning"
    assert {"metrics", "device", "models", "manage"} <= said.keys()
    with ServedGateway(
        tmp_path, "--log-format", "json", "--devices", "cpu:1", "--device-wait",
        "no-wait", pool=gateway.pool,
    ) as first:  # fmt: skip
        first.wait_ready()
        done = run_popgate(
            "serve", "-m", tmp_path, "--port", "0", "--log-format", "json",
            "--devices", "cpu:1", "--device-wait", "no-wait", POPGATE_POOL=gateway.pool,
        )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert [json.loads(line)["level"] for line in done.stderr.splitlines()][
        -1
    ] == "error"
