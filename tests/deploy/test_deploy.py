"""The files of `deploy/`: what they say is known to those who read it, and to us."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import jsonschema_rs
import numpy as np
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
    guarded = base.parent / "guarded"
    (policy,) = documents(guarded / "networkpolicy.yaml")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    opened = {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]}
    assert opened == ports
    (monitor,) = documents(guarded / "podmonitor.yaml")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} <= ports
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
    pairs = [a.partition("=") for a in container(CONTAINERS[0])["args"]]
    args = {name: value for name, _, value in pairs}
    needed = Settings().shutdown_timeout + float(args["--drain-grace"])
    assert pod["terminationGracePeriodSeconds"] > needed
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    grace = compose["services"]["popgate"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > Settings().shutdown_timeout
    unit = read_unit()
    assert int(unit["Service"]["TimeoutStopSec"]) > Settings().shutdown_timeout


def test_layers_of_the_image_keep_dependencies() -> None:
    """The builder installs the locked dependencies before it has the sources."""
    image = (ROOT / "Dockerfile").read_text()
    first, second = re.findall(r"^COPY ((?!--).+) \S+$", image, re.MULTILINE)[:2]
    assert (first, second) == ("requirements", ".")
    installed = re.findall(r"install (\S+) -r requirements/(\w+).txt", image)
    assert installed == [("--require-hashes", "build"), ("--require-hashes", "serve")]


@pytest.mark.parametrize("socket", [False, True])
def test_health_is_asked_where_the_server_listens(tmp_path: Path, socket: bool) -> None:
    models.affine(tmp_path / "affine.popef")
    health = runpy.run_path(str(DEPLOY / "health.py"))
    options = ("--uds", str(tmp_path / "socket")) if socket else ()
    # It is found by its command line: a process started from nothing has its own.
    with ServedGateway(tmp_path, *options, before=["env"]) as served:
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


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_alerts_fire_when_they_should() -> None:
    rules = DEPLOY / "prometheus" / "popgate.rules.yaml"
    cases = Path(__file__).parent / "popgate.rules.test.yaml"
    for command in (["check", "rules", str(rules)], ["test", "rules", str(cases)]):
        found = subprocess.run(
            ["promtool", *command], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "popgate.service")
    return unit


def test_the_service_starts_what_there_is() -> None:
    command = read_unit()["Service"]["ExecStart"].split()
    known = {name for option in declared_options() for name in option.names}
    assert command[1] == "serve"
    service = read_unit()["Service"]
    # The server sends what these wait for (tests/app/test_service_manager.py).
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > Settings().device_timeout
    assert {word for word in command if word.startswith("--")} <= known


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)
def test_systemd_reads_it_and_finds_little_exposed(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "popgate.service").read_text()
    unit = tmp_path / "popgate.service"
    unit.write_text(text.replace("/opt/popgate/bin/popgate", sys.executable))
    sockets = shutil.copy(DEPLOY / "systemd" / "popgate.socket", tmp_path)
    for command in (
        ["verify", str(unit), sockets],
        ["security", "--offline=true", "--threshold=20", str(unit)],
    ):
        found = subprocess.run(
            ["systemd-analyze", "--no-pager", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stdout + found.stderr
        assert found.stderr == ""


def test_nginx_keeps_management_from_others() -> None:
    text = (DEPLOY / "nginx" / "popgate.conf").read_text()
    (pattern,) = re.findall(r"location ~ (\S+)", text)
    refused = re.compile(pattern)
    api = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
    managed = [
        path
        for path, operations in api.items()
        if any("may not manage" in json.dumps(each) for each in operations.values())
    ]
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
        option, equals, value = text.partition("=")
        if option in ("--port", "--metrics-port"):
            continue
        for place, folder in mounts.items():
            value = value.replace(place, str(folder))
        value = {"--host": "127.0.0.1", "--drain-grace": "0.1"}.get(option, value)
        arguments.append(f"{option}{equals}{value}")
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


def serves_until_told(
    path: str, gateway: ServedGateway, name: str, is_ready: str = ""
) -> None:
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
    if is_ready:  # it still takes connections, and says that it wants none
        gateway.until(is_ready, 503)
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


def test_a_rollout_stops_at_a_model_that_does_not_load(
    folder: Path, tmp_path: Path
) -> None:
    good = add(folder, "good", models.affine)
    broken = add(folder, "broken", models.affine)
    broken.write_bytes(good.read_bytes()[:-100])
    read_only(folder)
    mounts = {"/models": folder, "/var/cache/popgate": tmp_path / "cache"}
    with started(CONTAINERS[0], mounts, "") as gateway:
        gateway.until("/v1/health/startup", 200)
        assert gateway.client.get("/v1/health/ready").status_code == 503
        gateway.infer("good", input=[[1.0, 2.0, 3.0, 4.0]])


class Kubelet:
    """Starts the container of KServe's runtime and probes it, as a kubelet would: its
    arguments, a user of its own, a volume that it may only read, one to write to, no
    home. A context manager.

    Each probe is repeated after its `periodSeconds`; `failed` names one that has
    failed as often in a row as its `failureThreshold`.
    """

    #: Another user, who may read what is ours (the interpreter) and write nothing.
    AS_ANOTHER = (
        "setpriv", "--reuid=12345", "--regid=12345", "--clear-groups",
        "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
    )  # fmt: skip

    def __init__(self, path: str, models: Path, scratch: Path, name: str) -> None:
        self.container = container(path)
        mounts = {"/mnt/models": str(models), "/tmp": str(scratch)}
        arguments = []
        for argument in self.container["args"]:
            option, _, value = argument.replace("{{.Name}}", name).partition("=")
            if option == "--port":
                continue  # any that is free
            mounted = [place for place in mounts if place in value]
            for place in mounted:
                value = value.replace(place, mounts[place])
            arguments.append(f"{option}={value}")
        self.gateway = ServedGateway(
            None,
            *arguments,
            before=self.AS_ANOTHER,
            HOME="/nonexistent",
            PYTHONDONTWRITEBYTECODE="1",
        )
        self.seen: dict[str, list[int]] = {}
        self.failed: list[str] = []
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Return when the startup probe has passed; then the others are asked."""
        self._watch("startupProbe")
        assert self.failed == [], self.gateway.output
        for probe in ("readinessProbe", "livenessProbe"):
            thread = threading.Thread(target=self._watch, args=(probe,))
            self._threads.append(thread)
            thread.start()
        until(lambda: len(self.seen) == 3 and all(self.seen.values()))

    def _watch(self, probe: str) -> None:
        said = self.container[probe]
        url = self.gateway.url
        seen = self.seen.setdefault(probe, [])
        failures = 0
        while not self._ends.is_set():
            try:
                # A new connection each time, as kubelets do.
                status = httpx.get(
                    url + said["httpGet"]["path"],
                    timeout=said.get("timeoutSeconds", 1),
                    trust_env=False,
                ).status_code
            except httpx.TransportError:
                status = 0
            seen.append(status)
            if status == 200 and probe == "startupProbe":
                return
            failures = 0 if status == 200 else failures + 1
            if failures == said.get("failureThreshold", 3):
                self.failed.append(probe)
                return
            self._ends.wait(said["periodSeconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self.gateway.__exit__()


needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="another user is what only root can become, with setpriv",
)


@pytest.fixture
def volumes() -> Iterator[tuple[Path, Path]]:
    """Where models are, and where anybody may write; both are open to other users."""
    with tempfile.TemporaryDirectory(prefix="popgate-deploy-", dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        for each in ("models", "scratch"):
            (root / each).mkdir()
        (root / "scratch").chmod(0o777)
        yield root / "models", root / "scratch"


@needs_root
@pytest.mark.parametrize("has_versions", [True, False])
def test_the_contract_of_kserve(volumes: tuple[Path, Path], has_versions: bool) -> None:
    """Probes pass, both protocols answer, and when it is to end, readiness says so
    first, and nothing that is asked meanwhile is lost."""
    folder, scratch = volumes
    place = folder / "7" if has_versions else folder
    place.mkdir(exist_ok=True)
    models.affine(scratch / "new").rename(place / "model.popef")
    read_only(folder)
    with Kubelet(CONTAINERS[1], folder, scratch, "mine") as kubelet:
        kubelet.start()
        gateway = kubelet.gateway
        assert Path(f"/proc/{gateway.process.pid}").stat().st_uid == 12345
        version = gateway.client.get("/v2/models/mine").json()["versions"]
        assert version == ["7" if has_versions else "1"]
        body = {"instances": [[1.0, 2.0, 3.0, 4.0]]}
        answer = gateway.client.post("/v1/models/mine:predict", json=body)
        assert answer.json() == {"predictions": [[3.0, 5.0, 7.0, 9.0]]}
        serves_until_told(CONTAINERS[1], gateway, "mine", is_ready="/v2/health/ready")
        ready, live = kubelet.seen["readinessProbe"], kubelet.seen["livenessProbe"]
        assert (ready[0], live[0]) == (200, 200)
        assert set(live) <= {200, 0}  # 0: it has ended
        assert "livenessProbe" not in kubelet.failed


@needs_root
def test_the_client_of_kserve(volumes: tuple[Path, Path]) -> None:
    kserve = pytest.importorskip(
        "kserve", reason="needs kserve (pip install kserve), which wants protobuf < 7"
    )
    folder, scratch = volumes
    models.affine(scratch / "new").rename(folder / "model.popef")
    read_only(folder)
    rows = [[1.0, 2.0, 3.0, 4.0]]
    with Kubelet(CONTAINERS[1], folder, scratch, "mine") as kubelet:
        kubelet.start()
        url = kubelet.gateway.url

        async def call() -> None:
            v1 = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v1"))
            said = await v1.infer(url, {"instances": rows}, model_name="mine")
            assert said == {"predictions": [[3.0, 5.0, 7.0, 9.0]]}
            assert await v1.is_model_ready(url, "mine")
            v2 = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
            assert await v2.is_server_live(url)
            assert await v2.is_server_ready(url)
            assert await v2.is_model_ready(url, "mine")
            for is_binary in (False, True):
                given = kserve.InferInput("input", [1, 4], "FP32")
                array = np.array(rows, np.float32)
                given.set_data_from_numpy(array, binary_data=is_binary)
                request = kserve.InferRequest("mine", [given])
                answer = await v2.infer(url, request, model_name="mine")
                values = answer.outputs[0].as_numpy()
                assert values.tolist() == [[3.0, 5.0, 7.0, 9.0]]
            await v1.close()
            await v2.close()

        asyncio.run(call())
