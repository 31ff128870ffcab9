"""Folders that somebody has filled with anything: what is wrong is that model's own
error, and every other model is served."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from app.config.config_formats import config_files
from app.config.model_config import ModelConfig
from app.config.model_options import REQUESTABLE
from app.plugins import ROUTES, plugin_names
from tests.app.served import ServedGateway, add
from tests.engine import models

DIGITS = "9" * 5000
HEX = "0x" + "f" * 5000  # no limit on digits where the base is a power of two
LONG = "a" * 5000

TOML = {
    "digits": f"instances = {DIGITS}",
    "hex": f"instances = {HEX}",
    "hex-in-list": f"devices = [{HEX}]",
    "long-key": f"{LONG} = 1",
    "size": f'channel_memory = "{"9" * 400}GiB"',
    "infinite": "timeout = inf",
    "no-number": "timeout = nan",
    "no-date": "example = {x = 2023-02-31}",
    "dotted": "a" + ".a" * 50_000 + " = 1",
    "dotted-quoted": '"a="' + " . 'a'" * 50_000 + " = 1",
    "dotted-inside": "example = {a" + ".a" * 50_000 + " = 1}",
    "dotted-table": "[a" + ".a" * 50_000 + "]",
    "nested": "example = " + "[" * 50_000,
    "example": f"example = {{x = {2**70}}}",
    "labels-name": f'labels = {{y = "{LONG}"}}',
    "labels-zero": r'labels = {y = "a\u0000b"}',
    "labels-out": 'labels = {y = "../../secret"}',
    "frozen-name": f'frozen_inputs = {{x = "{LONG}.npy"}}',
    "frozen-huge": f"frozen_inputs = {{x = [{HEX}]}}",
    "frozen-header": 'frozen_inputs = {x = "huge.npy"}',
    "frozen-pipe": 'frozen_inputs = {x = "pipe.npy"}',
    "state-name": f'save_outputs = "{"a" * 3000}"',
}
PBTXT = {
    "unknown-type": "input { data_type: 77 }",
    "negative-type": "input { data_type: -5 }",
    "huge-type": f"input {{ data_type: {10**19} }}",
    "huge-kind": f"instance_group {{ kind: {10**12} }}",
    "unknown-kind": "instance_group { kind: 9 }",
    "unknown-action": "dynamic_batching { priority_queue_policy { key: 1 "
    "value { timeout_action: 88 } } }",
    "huge-size": f"max_batch_size: {DIGITS}",
    "label-name": f'output {{ name: "y" label_filename: "{LONG}" }}',
    "long-field": f"{LONG}: 1",
    "many-braces": "input " * 5000,
}
HUGE_NPY = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': "
    b"(99999999999999,), }"
).ljust(127) + b"\n"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


KINDS: list[Callable[[Path], None]] = [pipe, folder, circle, endless, binary]


def fill(root: Path) -> set[str]:
    """Bad folders of all kinds and two good models; the names of the bad."""
    bad: set[str] = set()
    for name, text in TOML.items():
        add(root, name, config=text)
        (root / name / "huge.npy").write_bytes(HUGE_NPY)
        pipe(root / name / "pipe.npy")
        bad.add(name)
    for name, text in PBTXT.items() if "config.pbtxt" in config_files() else ():
        add(root, f"triton-{name}")
        (root / f"triton-{name}" / "config.pbtxt").write_text(text)
        bad.add(f"triton-{name}")
    for kind in KINDS:
        for file in ("config.toml", *config_files(), "1/m.popef"):
            # A circle of links is no file: such options are not there.
            if kind is circle and file != "1/m.popef":
                continue
            name = f"{kind.__name__}-{file.replace('/', '-')}"
            target = root / name / file
            add(root, name)
            target.unlink(missing_ok=True)
            kind(target)
            bad.add(name)
    circle(root / "round.popef")
    pipe(root / "tube.onnx")
    (root / "versions").mkdir()
    circle(root / "versions" / "1")
    (root / "void").mkdir()
    (root / "gone.popef").symlink_to("/" + "x" * 200 + "/y")
    bad |= {"round", "tube", "versions", "void", "gone"}
    add(root, "good", models.affine)
    add(root, "also-good", models.affine)
    return bad


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def bad(root: Path) -> set[str]:
    return fill(root)


def test_bad_folders_keep_no_others_from_being_served(
    root: Path, bad: set[str]
) -> None:
    with ServedGateway(root) as gateway:
        ready = gateway.wait_ready().client.get("/v1/health/ready").json()
        assert set(ready["failed"]) == bad
        for name, problem in ready["failed"].items():
            assert "a bug" not in problem, (name, problem)
            assert len(problem) < 3000, name
        for name in ("good", "also-good"):
            assert gateway.infer(name, input=[[1.0] * 4])
        document = ["/openapi.json"] * bool(plugin_names(ROUTES))
        for path in (*document, "/v1/models", "/v2/repository/index"):
            method = "POST" if path.endswith("index") else "GET"
            response = gateway.client.request(method, path)
            assert response.status_code == 200, response.text
        assert gateway.stop() == 0


def test_bad_folders_keep_polling_from_no_others(tmp_path: Path) -> None:
    add(tmp_path, "good", models.affine)
    options = "--model-control-mode=poll", "--repository-poll-secs=0.1"
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.wait_ready()
        bad = fill(tmp_path / "later")
        for entry in (tmp_path / "later").iterdir():
            if entry.name != "good":
                entry.rename(tmp_path / entry.name)
        gateway.until("/v2/models/also-good/ready", 200)
        assert gateway.infer("good", input=[[1.0] * 4])
        # A folder called "later" was a model as well, without a version.
        failed = gateway.client.get("/v1/health/ready").json()["failed"]
        assert failed.keys() <= bad | {"later"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("requests")
    add(root, "m", models.affine, config='save_outputs = "state"\n')
    with ServedGateway(root) as gateway:
        yield gateway.wait_ready()


class TestWhatALoadRequestMaySet:
    def load(self, gateway: ServedGateway, **parameters: str) -> tuple[int, str]:
        response = gateway.client.post(
            "/v2/repository/models/m/load", json={"parameters": parameters}
        )
        return response.status_code, response.text

    @pytest.mark.parametrize("key", ["save_outputs", "memory"])
    @pytest.mark.parametrize("where", ["override", "uploaded"])
    def test_what_it_may_not(
        self, gateway: ServedGateway, tmp_path: Path, key: str, where: str
    ) -> None:
        model = models.affine(tmp_path / "m.popef").read_bytes()
        value = f'"{tmp_path}"' if key == "save_outputs" else "1"
        parameters = {"config": f'{{"{key}": {value}}}'}
        if where == "uploaded":
            parameters = {
                "config": "{}",
                "file:1/m.popef": encoded(model),
                "file:config.toml": encoded(f"{key} = {value}".encode()),
            }
        status, text = self.load(gateway, **parameters)
        assert status == 400
        assert f"{key} can only be set in the model repository" in text

    def test_what_the_repository_says_stays(self, gateway: ServedGateway) -> None:
        assert self.load(gateway, config='{"instances": 2}')[0] == 200

    def test_every_key_was_thought_of(self) -> None:
        """A new key is the operator's until somebody says that requests may set it."""
        assert {f.name for f in fields(ModelConfig)} - REQUESTABLE == {
            # Which address the files come from.
            "source",
            # Files of the model, which plugins read.
            "sections",
            # Which inputs may be padded, that is, mixed with those of others.
            "ragged",
            "save_outputs",
            "memory",
            # Which code runs, and with what: never a request's to say.
            "environment",
            "memory_limit",
            "models",
            "parameters",
            "python",
            "requirements",
            "start_timeout",
            "working_folder",
        }


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
