"""`popgate tune` on servers of its own, and on a running one.

Covers: plugins/tools/src/popgate_tools/tune/command.py,
    plugins/tools/src/popgate_tools/tune/server.py,
    plugins/tools/src/popgate_tools/tune/trials.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from popgate_tools.tune.search import Found, LoadPoint, Reached, Setting
from popgate_tools.tune.trials import Trials, row
from tests.app.cli.calls import Call
from tests.app.served import POPGATE, ROOT, ServedGateway, add
from tests.engine import models
from tests.support import WAIT, is_gone, until

QUICK = ["--seconds", "0.05", "--time", "0.3"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add(tmp_path / "models", "affine", config="versions = 'latest'\n")
    return tmp_path / "models"


def test_a_model_of_a_folder(
    popgate: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.toml is changed only if it may be."""
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    config = folder / "affine" / "config.toml"
    command = ["tune", "affine", "-m", folder, "--p99", "30s", *QUICK]
    done = popgate(*command)
    assert done.code == 2
    assert f"{config} exists already; --force" in done.err
    done = popgate(*command, "--force")
    assert done.code == 0, done.err
    head, first, *_, last = done.out.splitlines()
    assert head.split() == ["devices", "threads", "instances", "batch", "delay", "in",
                            "flight", "requests/s", "p99"]  # fmt: skip
    assert first.split()[2] == "1"
    document = tomllib.loads(config.read_text())
    assert document.pop("versions") == "latest"
    if "none is better" in last:  # as may be, on a machine that does other things
        assert not document
    else:
        assert last == f"written to {config}"
        assert document
        assert document.keys() <= {"instances", "max_batch_size", "max_queue_delay"}
    assert not list(scratch.iterdir())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    add(root, "affine")
    add(root, "fixed", models.mean_over_rows)
    with ServedGateway(root) as served:
        yield served.wait_ready()


@pytest.mark.parametrize("name", ["affine", "fixed"])
def test_a_running_server(popgate: Call, running: ServedGateway, name: str) -> None:
    """Is left as it was; the file goes to standard output, the table does not."""
    config = f"/v2/models/{name}/config"
    before = running.client.get(config).json()
    done = popgate("tune", name, "--url", running.url, "--p99", "30s", *QUICK)
    assert done.code == 0, done.err
    assert "devices" in done.err
    assert tomllib.loads(done.out).keys() <= {"instances", "max_batch_size",
                                              "max_queue_delay"}  # fmt: skip
    assert running.client.get(config).json() == before


def test_too_slow(popgate: Call, running: ServedGateway) -> None:
    done = popgate("tune", "affine", "--url", running.url, "--p99", "1us", *QUICK)
    assert done.code == 1
    assert "affine cannot keep --p99 1us: one request at a time takes" in done.err
    assert "too slow" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["affine", "--p99", "10"], "expected a time with its unit"),
        (["affine", "--p99", "0ms"], "expected a time with its unit"),
        (
            ["afine", "--p99", "10ms"],
            "no model 'afine', neither as a file nor in --model-repository ",
        ),
        (["affine", "--p99", "10ms", "-o", "none/x"], "none/x: no such folder"),
        ([ROOT, "--p99", "10ms"], "holds several models"),
        (["affine"], "Missing option '--p99'"),
    ],
)
def test_mistakes(popgate: Call, folder: Path, arguments: list[str], said: str) -> None:
    done = popgate("tune", *arguments, "-m", folder)
    assert said in done.err
    assert done.code == 2


def test_a_model_that_cannot_be_served(popgate: Call, tmp_path: Path) -> None:
    file = tmp_path / "broken.popef"
    file.write_bytes(b"not a container")
    done = popgate("tune", file, "--p99", "10ms")
    assert done.code == 1
    assert "not a PopGate container" in done.err


def test_control_c_leaves_nothing(folder: Path) -> None:
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    config = folder / "affine" / "config.toml"
    before = config.read_text()
    command = [*POPGATE, "tune", "affine", "-m", str(folder), "--p99", "30s", "--force"]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("devices"), process.stderr.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 130
        assert "Traceback" not in process.stderr.read()
    assert config.read_text() == before
    assert not list(scratch.iterdir())


def test_its_server_ends_with_it_however_it_is_killed(folder: Path) -> None:
    command = [*POPGATE, "tune", "affine", "-m", str(folder), "--p99", "30s", "--force"]
    with tempfile.TemporaryDirectory() as place, subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "TMPDIR": place},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("devices")
        of_it = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        servers = [int(pid) for pid in of_it.split()]
        assert len(servers) == 1
        process.kill()
        until(lambda: all(map(is_gone, servers)), servers)


def test_what_is_written(running: ServedGateway) -> None:
    """Only what is different; of models whose rows do not run together no batches."""
    from popgate_client import Client
    from popgate_tools.tune.server import RunningServer

    step = LoadPoint(8, 1000.0, 0.01)
    first = Reached(Setting(1, 1, 64, 0.0), step)
    best = Reached(Setting(1, 2, 64, 0.002), step)
    for name, changes in (
        ("affine", {"instances": 2, "max_queue_delay": 0.002}),
        ("fixed", {"instances": 2}),
    ):
        server = RunningServer(Client(running.url), name)
        trials = Trials(server, name, 1.0, 0.1, 1.0, print)
        trials.prepare(None, None, 1)
        assert trials.changes(Found(first, best)) == changes
        server.close()
    assert row(best).split() == [
        "1", "1", "2", "64", "2.00", "ms", "8", "1000.0", "10.00", "ms",
    ]  # fmt: skip
