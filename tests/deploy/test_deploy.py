"""The files of `deploy/`: what they say is known to those who read it, and to us."""

from __future__ import annotations

import configparser
import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml

from app.cli.settings_options import declared_options
from app.settings import Settings
from tests.app.served import ROOT, ServedGateway, add
from tests.engine import models
from tests.support import until

DEPLOY = ROOT / "deploy"
SCHEMAS = json.loads((Path(__file__).parent / "schemas.json").read_text())
COMPOSE = json.loads((Path(__file__).parent / "compose.json").read_text())
MANIFESTS = sorted(DEPLOY.glob("k*/**/*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def problems(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object of Kubernetes or KServe."""
    kind = f"{document['apiVersion']} {document['kind']}"
    schema = SCHEMAS["kinds"][kind] | {"$defs": SCHEMAS["$defs"]}
    found = jsonschema_rs.validator_for(schema).iter_errors(document)
    return [f"{'/'.join(map(str, e.instance_path))}: {e.message}" for e in found]


def container(path: str) -> dict[str, Any]:
    (document,) = documents(DEPLOY / path)
    spec = document["spec"]
    if document["kind"] == "Deployment":
        spec = spec["template"]["spec"]
    (found,) = spec["containers"]
    assert isinstance(found, dict)
    return found


CONTAINERS = ("kubernetes/base/deployment.yaml", "kserve/runtime.yaml")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_manifests_have_known_keys_only(path: Path) -> None:
    for document in documents(path):
        if document["kind"] == "Kustomization":
            assert set(document) <= {"apiVersion", "kind", "resources", "images"}
            for name in document["resources"]:
                assert (path.parent / name).exists(), name
        else:
            assert problems(document) == []


def test_a_misspelt_key_is_found() -> None:
    (document,) = documents(DEPLOY / CONTAINERS[0])
    probe = document["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    probe["periodSecond"] = 3
    assert any("periodSecond" in each for each in problems(document))
    (runtime,) = documents(DEPLOY / CONTAINERS[1])
    runtime["spec"]["supportedModelFormat"] = []
    assert any("supportedModelFormat" in each for each in problems(runtime))
    (scaled,) = documents(DEPLOY / "kubernetes/keda/scaledobject.yaml")
    scaled["spec"]["triggers"][0]["metricsType"] = "Value"
    scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behaviour"] = {}
    found = problems(scaled)
    assert [key for key in ("metricsType", "behaviour") if key in str(found)] == [
        "metricsType",
        "behaviour",
    ]


def test_every_folder_of_kustomize_has_all_its_files() -> None:
    for folder in (DEPLOY / "kubernetes").iterdir():
        (document,) = documents(folder / "kustomization.yaml")
        there = {p.name for p in folder.glob("*.yaml")} - {"kustomization.yaml"}
        assert there <= set(document["resources"])


def test_selectors_select() -> None:
    base = DEPLOY / "kubernetes" / "base"
    (deployment,) = documents(base / "deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (service,) = documents(base / "service.yaml")
    (budget,) = documents(base / "disruption.yaml")
    assert service["spec"]["selector"].items() <= labels.items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {port["name"] for port in container(CONTAINERS[0])["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports
    (scaler,) = documents(base.parent / "autoscaled" / "autoscaler.yaml")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (scaled,) = documents(base.parent / "keda" / "scaledobject.yaml")
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


@pytest.mark.parametrize("path", CONTAINERS)
def test_what_is_said_to_serve_is_known_to_it(path: str) -> None:
    found = container(path)
    known = {name for option in declared_options() for name in option.names}
    given = {arg.partition("=")[0] for arg in found["args"]}
    assert given <= known, given - known
    api = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert found[probe]["httpGet"]["path"] in api


def test_time_enough_to_end() -> None:
    """Accepted requests are answered before anybody kills the process."""
    (deployment,) = documents(DEPLOY / CONTAINERS[0])
    pod = deployment["spec"]["template"]["spec"]
    args = dict(a.split("=", 1) for a in container(CONTAINERS[0])["args"])
    needed = Settings().shutdown_timeout + float(args["--drain-grace"])
    assert pod["terminationGracePeriodSeconds"] > needed
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    grace = compose["services"]["popgate"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > Settings().shutdown_timeout
    unit = read_unit()
    assert int(unit["Service"]["TimeoutStopSec"]) > Settings().shutdown_timeout


def test_layers_of_the_image_keep_dependencies(tmp_path: Path) -> None:
    """What is copied first is enough to install all that the package depends on."""
    image = (ROOT / "Dockerfile").read_text()
    first, second = re.findall(r"^COPY ((?!--).+) \S+$", image, re.MULTILINE)[:2]
    assert second == "."
    for name in first.split():
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "compat").mkdir()
    command = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", ".", ".")
    subprocess.run(
        [sys.executable, "-m", "pip", *command],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.findall(r"^Requires-Dist: (\S+)(?!.*extra)[^\n]*$", metadata, re.M)
    assert len(found) == len(project["dependencies"])


@pytest.mark.parametrize("socket", [False, True])
def test_health_is_asked_where_the_server_listens(tmp_path: Path, socket: bool) -> None:
    models.affine(tmp_path / "affine.popef")
    health = runpy.run_path(str(DEPLOY / "health.py"))
    options = ("--uds", str(tmp_path / "socket")) if socket else ()
    with ServedGateway(tmp_path, *options) as served:
        if socket:
            assert health["main"](str(served.process.pid)) is None
        else:  # its option says 0, which is any port
            command = ["popgate", "serve", f"--port={served.url.rpartition(':')[2]}"]
            assert health["server_place"](command, {}) == (served.url, None)
    place = health["server_place"]
    assert place(["serve"], {"POPGATE_PORT": "9"}) == ("http://127.0.0.1:9", None)
    secure = ["serve", "--port", "7", "--tls-cert", "c.pem", "--lazy"]
    assert place(secure, {"POPGATE_PORT": "9"}) == ("https://127.0.0.1:7", None)


def test_compose() -> None:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert list(jsonschema_rs.validator_for(COMPOSE).iter_errors(document)) == []
    service = document["services"]["popgate"]
    image = (ROOT / "Dockerfile").read_text()
    for name in service["environment"]:
        assert name.removeprefix("POPGATE_").lower() in Settings.model_fields
    for volume in service["volumes"]:
        assert volume.removesuffix(":ro").rpartition(":")[2] in image
    assert (DEPLOY / service["build"] / "Dockerfile").exists()


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "popgate.service")
    return unit


def test_the_service_starts_what_there_is() -> None:
    command = read_unit()["Service"]["ExecStart"].split()
    known = {name for option in declared_options() for name in option.names}
    assert command[1] == "serve"
    assert {word for word in command if word.startswith("--")} <= known


def test_nginx_keeps_management_from_others() -> None:
    text = (DEPLOY / "nginx" / "popgate.conf").read_text()
    (pattern,) = re.findall(r"location ~ (\S+)", text)
    refused = re.compile(pattern)
    api = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
    managed = [path for path, operations in api.items() if "403" in str(operations)]
    assert managed
    for path in managed:
        assert refused.search(path), path
    assert not refused.search("/v2/models/m/infer")
    assert not refused.search("/v1/models/m/infer")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_reads_it(tmp_path: Path) -> None:
    text = (DEPLOY / "nginx" / "popgate.conf").read_text()
    text = re.sub(r"(?m)^ +ssl_certificate.*$", "", text).replace("443 ssl", "8443")
    whole = tmp_path / "nginx.conf"
    whole.write_text(f"pid {tmp_path}/pid; events {{}} http {{ {text} }}")
    found = subprocess.run(
        ["nginx", "-t", "-c", whole], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr


# -- as a kubelet does it


def started(path: str, mounts: Mapping[str, Path], name: str) -> ServedGateway:
    """The container of a manifest: its arguments, with other folders and any port."""
    arguments = []
    for argument in container(path)["args"]:
        text = argument.replace("{{.Name}}", name)
        option, _, value = text.partition("=")
        if option in ("--port", "--metrics-port"):
            continue
        for place, folder in mounts.items():
            value = value.replace(place, str(folder))
        value = {"--host": "127.0.0.1", "--drain-grace": "0.1"}.get(option, value)
        arguments.append(f"{option}={value}")
    return ServedGateway(None, *arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A volume that is mounted to be read only."""
    root = tmp_path / "volume"
    root.mkdir()
    yield root
    for each in root.rglob("*"):
        if each.is_dir():
            each.chmod(0o755)


def read_only(root: Path) -> None:
    for each in root.rglob("*"):
        each.chmod(0o555 if each.is_dir() else 0o444)


def serves_until_told(path: str, gateway: ServedGateway, name: str) -> None:
    """Its probes pass, requests are answered, and none is lost when it is to end."""
    found = container(path)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        gateway.until(found[probe]["httpGet"]["path"], 200)
    answers: list[int] = []

    def ask() -> None:
        body = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
        while True:
            try:
                answer = gateway.client.post(f"/v1/models/{name}/infer", json=body)
            except httpx.ConnectError:  # nobody listens any more
                return
            answers.append(answer.status_code)
            if answer.headers.get("connection") == "close":
                return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) > 40)
    gateway.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert gateway.process.wait() == 0
    assert set(answers) == {200}


def test_the_deployment_serves(folder: Path, tmp_path: Path) -> None:
    add(folder, "affine", models.affine)
    read_only(folder)
    mounts = {"/models": folder, "/var/cache/popgate": tmp_path / "cache"}
    with started(CONTAINERS[0], mounts, "") as gateway:
        serves_until_told(CONTAINERS[0], gateway, "affine")


@pytest.mark.parametrize("has_versions", [True, False])
def test_the_runtime_of_kserve_serves(
    folder: Path, tmp_path: Path, has_versions: bool
) -> None:
    with ExitStack() as stack:
        place = folder / "7" if has_versions else folder
        place.mkdir(exist_ok=True)
        models.affine(tmp_path / "new").rename(place / "model.popef")
        read_only(folder)
        mounts = {"/mnt/models": folder, "/tmp/popgate": tmp_path / "cache"}
        gateway = stack.enter_context(started(CONTAINERS[1], mounts, "mine"))
        serves_until_told(CONTAINERS[1], gateway, "mine")
