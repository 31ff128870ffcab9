"""One way to a server for all commands: keys, TLS, base paths, sockets, headers.

Covers: plugins/tools/src/popgate_tools/asking/server.py,
    plugins/tools/src/popgate_tools/asking/option_groups.py,
    plugins/client/src/popgate_client/tls.py.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from app.config.keys import digest_of
from popgate_client import Client, ClientError, without_credentials
from tests.app.cli.calls import Call
from tests.app.served import ServedGateway
from tests.engine import models

VARIABLES = (
    "POPGATE_URL", "POPGATE_KEY", "SSL_CERT_FILE", "POPGATE_CLIENT_CERT",
    "POPGATE_CLIENT_CERT_KEY",
)  # fmt: skip
#: Every command that talks to a server, as it is called for the model `affine`.
COMMANDS = {
    "infer": ["affine", "--input", "input=[1, 2, 3, 4]"],
    "batch": ["affine", "--input", "{folder}/rows.jsonl"],
    "perf": ["affine", "--seconds", "0.1", "--warm-up", "0", "--within", "1000",
             "--concurrency", "1,2"],
    "tune": ["affine", "--p99", "30s", "--seconds", "0.05", "--time", "0.1"],
    "models": [],
    "load": ["affine"],
    "top": ["--once", "--interval", "0.1"],
    "unload": ["affine"],
    "drain": [],
}  # fmt: skip


class Guarded(NamedTuple):
    """A gateway that asks for a key and a client certificate, below a base path."""

    gateway: ServedGateway
    folder: Path

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/base"

    @property
    def options(self) -> list[str]:
        at = ["--url", self.url, "--key", "secret"]
        trust = ["--cacert", f"{self.folder}/authority.pem"]
        cert = [
            "--cert",
            f"{self.folder}/me.pem",
            "--cert-key",
            f"{self.folder}/me.key",
        ]
        return at + trust + cert


def fill(folder: Path) -> Path:
    """A folder with a model, and a file of one key that allows everything."""
    root = folder / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    (folder / "keys.toml").write_text(
        f"[[key]]\nname = 'me'\nsha256 = '{digest_of(b'secret').hex()}'\n"
        "groups = ['infer', 'metadata', 'manage', 'pages']\n"
    )
    (folder / "rows.jsonl").write_text("[1, 2, 3, 4]\n[5, 6, 7, 8]\n")
    return root


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    root = fill(folder)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    mine = authority.issue_cert("me.example", common_name="me")
    mine.private_key_pem.write_to_path(str(folder / "me.key"))
    mine.cert_chain_pems[0].write_to_path(str(folder / "me.pem"))
    with ServedGateway(
        root, "--tls-cert", f"{folder}/server.pem", "--tls-client-ca",
        f"{folder}/authority.pem", "--keys", f"{folder}/keys.toml", "--base-path",
        "/base", "--cache-dir", f"{folder}/cache",
    ) as gateway:  # fmt: skip
        gateway.wait_line("docs ")
        yield Guarded(gateway, folder)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def arguments(command: str, folder: Path) -> list[str]:
    return [command, *(each.format(folder=folder) for each in COMMANDS[command])]


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c not in ("unload", "drain")]
)
def test_each_command_shows_key_and_certificate(
    popgate: Call, guarded: Guarded, command: str
) -> None:
    done = popgate(*arguments(command, guarded.folder), *guarded.options)
    assert done.code == 0, done.err


def test_what_ends_the_model(popgate: Call, tmp_path: Path) -> None:
    """`unload` and `drain`, with the key from the environment and a custom header."""
    root = fill(tmp_path)
    keys = str(tmp_path / "keys.toml")
    with ServedGateway(root, "--keys", keys) as gateway:
        gateway.wait_line("docs ")
        at = ["--url", gateway.url]
        assert popgate("unload", "affine", *at, "-H", "X-API-Key: secret").code == 0
        assert popgate("drain", gateway.url, "--key", "secret").code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refusal_names_option_and_variable(
    popgate: Call, guarded: Guarded, command: str
) -> None:
    without = [o for o in guarded.options if o not in ("--key", "secret")]
    done = popgate(*arguments(command, guarded.folder), *without)
    assert done.code == 1
    assert "--key or POPGATE_KEY" in done.err
    assert "give a key" in done.err


def test_variables_instead_of_options(
    popgate: Call, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = guarded.folder
    values = (guarded.url, "secret", f"{folder}/authority.pem", f"{folder}/me.pem",
              f"{folder}/me.key")  # fmt: skip
    for name, value in zip(VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)
    for command in ("infer", "models"):
        done = popgate(*arguments(command, folder))
        assert done.code == 0, done.err


def test_what_tls_lacks_is_named(popgate: Call, guarded: Guarded) -> None:
    url, folder = guarded.url, guarded.folder
    done = popgate("models", "--url", url, "--key", "secret")
    assert done.code == 1
    assert "--cacert (SSL_CERT_FILE)" in done.err
    trust = ["--url", url, "--cacert", f"{folder}/authority.pem"]
    done = popgate("models", *trust, "--cert", f"{folder}/rows.jsonl")
    assert done.code == 2
    assert f"--cert {folder}/rows.jsonl: " in done.err
    done = popgate("models", "--url", url, "--cacert", f"{folder}/none.pem")
    assert done.code == 2
    assert "--cacert" in done.err
    done = popgate("models", "--url", url, "-H", "nothing")
    assert (done.code, "expected 'NAME: VALUE'" in done.err) == (2, True)


def test_the_client_trusts_the_authorities_of_the_environment(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = guarded.folder
    cert = (f"{folder}/me.pem", f"{folder}/me.key")
    with (
        Client(guarded.url, api_key="secret", cert=cert, retries=0) as client,
        pytest.raises(ClientError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.metadata()
    monkeypatch.setenv("SSL_CERT_FILE", f"{folder}/authority.pem")
    with Client(guarded.url, api_key="secret", cert=cert) as client:
        assert client.infer("affine", [1, 2, 3, 4])["output"].shape == (1, 4)
    monkeypatch.setenv("SSL_CERT_FILE", f"{folder}/rows.jsonl")
    with (
        Client(guarded.url, api_key="secret") as client,
        pytest.raises(ClientError, match="SSL_CERT_FILE"),
    ):
        client.metadata()


def test_sockets_absolute_and_relative(
    popgate: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        root = fill(place)
        monkeypatch.chdir(place)
        with ServedGateway(
            root, f"--uds={place}/s", "--keys", f"{place}/keys.toml", "--base-path",
            "/base", "--trust-loopback",
        ) as gateway:  # fmt: skip
            gateway.wait_line("docs ")
            for url in (f"unix:{place}/s", f"unix://{place}/s", "unix:s",
                        "unix:./s", f"unix:{place}/s:/base"):  # fmt: skip
                for command in ("infer", "perf", "models", "top"):
                    done = popgate(
                        *arguments(command, place), "--url", url, "--key", "secret"
                    )
                    assert done.code == 0, (url, command, done.err)
    finally:
        shutil.rmtree(place)


def test_addresses_that_are_none(popgate: Call) -> None:
    for url in ("ftp://there", "unix:", "http://there/a b"):
        done = popgate("models", "--url", url)
        assert done.code == 2, url
        assert "error:" in done.err


def test_passwords_of_urls_are_not_shown(popgate: Call, tmp_path: Path) -> None:
    for host in ("127.0.0.1:9", "127.0.0.1:99999", "127.0.0.1:9?query"):
        for command in ("infer", "perf", "models", "top"):
            url = f"http://jo:secret@{host}"
            done = popgate(*arguments(command, tmp_path), "--url", url)
            assert done.code != 0, (command, host)
            assert f"http://{host}" in done.err, (command, host)
            assert "secret" not in done.out + done.err, (command, host)
    for url in ("unix:a@b", "//h@", "http://h/a@b", "h:1"):
        assert without_credentials(url) == {"//h@": "//"}.get(url, url)
    assert without_credentials("jo:a@b@h:1/@") == "h:1/@"


def test_one_declaration(popgate: Call) -> None:
    """Every command has the same options of the server, with the same words."""
    shown = set()
    for command in COMMANDS:
        text = popgate(command, "--help").out
        section = text.partition("\nServer:\n")[2].partition("\n\n")[0]
        lines = section.splitlines()
        shown.add("\n".join(lines[next(i for i, line in enumerate(lines)
                                       if "--key" in line):]))  # fmt: skip
    assert len(shown) == 1
    assert json.dumps(os.linesep.join(shown)).count("--c") >= 3
