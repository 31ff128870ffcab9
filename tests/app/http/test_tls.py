"""TLS: certificates, their renewal under load, clients that need one.

Covers: app/http/handshake.py.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from app.config.keys import digest_of
from app.http.handshake import ServerContext, offered_protocols
from app.http.tls import Certificate, TlsError, names_of
from tests.app.served import ServedGateway, run_popgate
from tests.engine import models
from tests.support import WAIT, no_descriptors, until

BODY = {"inputs": {"input": [[1, 2, 3, 4]]}}
INFER = "/v1/models/affine/infer"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def issue(authority: trustme.CA, folder: Path) -> Path:
    """A certificate with its key in one file, put in place at once."""
    beside = folder / "new.pem"
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(beside))
    return beside.replace(folder / "server.pem")


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@contextmanager
def served(
    folder: Path, trust: ssl.SSLContext, *options: str, before: tuple[str, ...] = ()
) -> Iterator[ServedGateway]:
    """A gateway with a model and a certificate, ready."""
    models.affine(folder / "affine.popef")
    cert = str(folder / "server.pem")
    with ServedGateway(folder, "--tls-cert", cert, *options, before=before) as gateway:
        gateway.client.close()
        gateway.client = httpx.Client(base_url=gateway.url, verify=trust, timeout=WAIT)
        yield gateway.wait_ready()


def address_of(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("https://").split(":")
    return host, int(port)


def connected(url: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(address_of(url), WAIT)
    return context.wrap_socket(plain, server_hostname="localhost")


def serial(url: str, context: ssl.SSLContext) -> object:
    """The number of the certificate that new connections get."""
    with connected(url, context) as tls:
        found = tls.getpeercert()
    assert found is not None
    return found["serialNumber"]


def test_the_names_of_a_certificate() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "A, B=C"), ("serialNumber", "1")),
        (("commonName", 'x"\\'),),
    )
    others = (("DNS", "a.example"), ("URI", "spiffe://example/a"))
    assert names_of({"subject": subject, "subjectAltName": others}) == (
        r"C=DE,O=A\, B\=C+serialNumber=1,CN=x\"\\",
        "DNS:a.example",
        "URI:spiffe://example/a",
    )
    assert names_of({}) == ()


def client_of(authority: trustme.CA, name: str) -> tuple[ssl.SSLContext, str]:
    """A client with a certificate by `authority`, and that one's subject."""
    issued = authority.issue_cert(f"{name}.example", common_name=name)
    context = trusting(authority)
    issued.configure_cert(context)
    parsed = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    # RFC 4514 begins with the last attribute, a certificate with the first.
    return context, ",".join(reversed(parsed.subject.rfc4514_string().split(",")))


def test_a_certificate_is_a_key(tmp_path: Path, authority: trustme.CA) -> None:
    issue(authority, tmp_path)
    pem = tmp_path / "clients.pem"
    authority.cert_pem.write_to_path(str(pem))
    shop, _ = client_of(authority, "shop")
    ops, subject = client_of(authority, "ops")
    nobody, _ = client_of(authority, "nobody")
    keys = tmp_path / "keys.toml"
    keys.write_text(
        "[[key]]\nname = 'shop'\ncertificate = 'DNS:shop.example'\n"
        "groups = ['infer', 'metrics']\n"
        f"[[key]]\nname = 'ops'\ncertificate = '{subject}'\ngroups = ['metadata']\n"
        f"[[key]]\nname = 'sent'\nsha256 = '{digest_of(b'k').hex()}'\n"
        "groups = ['pages']\n"
    )
    options = ["--tls-client-ca", str(pem), "--keys", str(keys), "--metrics-port", "0"]
    with served(tmp_path, shop, *options) as gateway:
        metrics = gateway.wait_line("metrics").split()[-1]
        for context, infer, models, metric in (
            (shop, 200, 403, 200),
            (ops, 403, 200, 403),
            (nobody, 401, 401, 401),
        ):
            with httpx.Client(base_url=gateway.url, verify=context) as client:
                for _ in range(2):  # the second time by the known head
                    assert client.post(INFER, json=BODY).status_code == infer
                assert client.get("/v1/models").status_code == models
                sent = {"X-API-Key": "k"}
                # Of the group of the pages, as all unknown addresses.
                assert client.get("/nothing", headers=sent).status_code == 404
                assert client.get("/v1/models", headers=sent).status_code == 403
                wrong = {"X-API-Key": "wrong"}
                assert client.post(INFER, json=BODY, headers=wrong).status_code == 401
            assert httpx.get(metrics, verify=context).status_code == metric
    done = run_popgate("serve", "-m", tmp_path, "--port", "0", "--keys", str(keys))
    assert done.returncode == 2
    assert "set --tls-client-ca" in done.stderr


def serials(url: str, context: ssl.SSLContext) -> set[object]:
    """The numbers that some new connections get: of each worker, if there are more."""
    return {serial(url, context) for _ in range(8)}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_certificate_is_renewed_under_load(
    tmp_path: Path, authority: trustme.CA, workers: str
) -> None:
    path = issue(authority, tmp_path)
    trust = trusting(authority)
    options = "--metrics-port", "0", "--workers", workers
    with served(tmp_path, trust, *options) as gateway:
        url = gateway.url
        metrics = gateway.wait_line("metrics").split()[-1]
        assert metrics.startswith("https://")
        assert "popgate_certificate_expiry_timestamp_seconds 32503680000" in (
            httpx.get(metrics, verify=trust).text
        )
        ended = threading.Event()
        statuses: set[int] = set()

        def load() -> None:
            with httpx.Client(base_url=url, verify=trust) as client:
                while not ended.is_set():
                    # On a connection that is kept, and on a new one.
                    statuses.add(client.post(INFER, json=BODY).status_code)
                    new = httpx.post(url + INFER, json=BODY, verify=trust)
                    statuses.add(new.status_code)

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                before = serial(url, trust)
                issue(authority, tmp_path)
                until(lambda: before not in serials(url, trust))  # noqa: B023
            # What is no certificate changes nothing.
            before = serial(url, trust)
            path.write_text("none")
            gateway.wait_line("the certificate was not reloaded")
            assert serials(url, trust) == {before}
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert statuses == {200}
        assert gateway.stop() == 0


def test_what_comes_over_tls(tmp_path: Path, authority: trustme.CA) -> None:
    trust = trusting(authority)
    issue(authority, tmp_path)
    with served(tmp_path, trust) as gateway:
        large = {"inputs": {"input": [[1.5, 2, 3, 4]] * 20_000}}
        answer = gateway.client.post(INFER, json=large)
        assert answer.is_success
        assert len(answer.content) > 1 << 18
        # No half of a connection can be closed; a last answer is read all the same.
        with connected(gateway.url, trust) as tls:
            tls.sendall(b"GARBAGE\r\n\r\n")
            text = b""
            while part := tls.recv(1 << 16):
                text += part
        assert text.startswith(b"HTTP/1.1 400")
        assert b"bad_http" in text
        served_by = Certificate(tmp_path / "server.pem")
        assert served_by.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_what_is_no_handshake_of_ours_is_told(
    tmp_path: Path, authority: trustme.CA
) -> None:
    issue(authority, tmp_path)
    trust = trusting(authority)
    old, other = trusting(authority), trusting(authority)
    with warnings.catch_warnings():  # there is nothing good about it
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL@SECLEVEL=0")
    other.set_alpn_protocols(["h2"])
    blocks = trusting(authority)
    blocks.maximum_version = ssl.TLSVersion.TLSv1_2
    blocks.set_ciphers("ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256")
    with served(tmp_path, trust) as gateway:
        for context, why in (
            (old, "alert protocol version"),
            (other, "alert no application protocol"),
            (blocks, "alert handshake failure"),
        ):
            with pytest.raises(ssl.SSLError) as raised:
                connected(gateway.url, context)
            assert why in str(raised.value).lower().replace("_", " ")
        both = trusting(authority)
        both.set_alpn_protocols(["h2", "http/1.1"])
        with connected(gateway.url, both) as tls:
            assert tls.selected_alpn_protocol() == "http/1.1"
        plain = gateway.url.replace("https:", "http:")
        for body in (b"", bytes(300_000)):
            told = httpx.post(plain + INFER, content=body, timeout=WAIT)
            assert told.status_code == 400
            assert "https://" in told.json()["error"]


def test_what_a_client_offers_is_read() -> None:
    """Of whatever bytes, and of a greeting that comes in any pieces."""
    client = ssl.create_default_context()
    client.set_alpn_protocols(["h2", "x"])
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(into, out, server_hostname="localhost").do_handshake()
    hello = out.read()
    assert offered_protocols(hello) == [b"h2", b"x"]
    for end in range(len(hello)):
        assert len(offered_protocols(hello[:end])) <= 2
        assert len(offered_protocols(hello[:end] + b"\xff" * 9)) < 9
    assert offered_protocols(b"\x15" + hello[1:]) == []
    assert offered_protocols(hello[:5] + b"\x02" + hello[6:]) == []
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ServerContext().wrap_bio(incoming, outgoing, server_side=True)
    for at in range(len(hello)):
        incoming.write(hello[at : at + 1])
        with pytest.raises(ssl.SSLWantReadError):
            server.do_handshake()
        assert bool(outgoing.pending) == (at == len(hello) - 1)
    # Who goes on all the same is dropped in the end.
    incoming.write(bytes(1 << 19))
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    incoming.write(bytes(1 << 20))
    with pytest.raises(ssl.SSLError, match="refused"):
        server.do_handshake()


def test_stalled_handshakes_keep_out_nobody(
    tmp_path: Path, authority: trustme.CA
) -> None:
    issue(authority, tmp_path)
    trust = trusting(authority)
    few = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    with served(tmp_path, trust, before=few) as gateway, ExitStack() as stack:
        gateway.client.close()
        stalled = []
        for number in range(400):
            plain = socket.create_connection(address_of(gateway.url), WAIT)
            plain.sendall(b"\x16\x03\x01\x02" * (number % 3 == 1))
            stalled.append(stack.enter_context(plain))
        for _ in range(5):
            with httpx.Client(base_url=gateway.url, verify=trust) as client:
                assert client.get("/v1/health/ready").status_code == 200
                assert client.post(INFER, json=BODY).status_code == 200
        with suppress(ConnectionResetError):
            assert stalled[0].recv(1) == b""
        with trust.wrap_socket(stalled[-1], server_hostname="localhost") as tls:
            assert tls.version() == "TLSv1.3"


def test_clients_need_a_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    issue(authority, tmp_path)
    clients = trustme.CA()
    clients.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    known, unknown = trusting(authority), trusting(authority)
    clients.issue_cert("client").configure_cert(known)
    authority.issue_cert("client").configure_cert(unknown)
    ca = ("--tls-client-ca", str(tmp_path / "clients.pem"))
    with served(tmp_path, known, *ca) as gateway:
        assert gateway.client.post(INFER, json=BODY).is_success
        for context, why in (
            (trusting(authority), "CERTIFICATE_REQUIRED"),
            (unknown, "UNKNOWN_CA"),
        ):
            with pytest.raises(httpx.TransportError):
                httpx.post(gateway.url + INFER, json=BODY, verify=context)
            with (
                pytest.raises(ssl.SSLError) as raised,
                connected(gateway.url, context) as tls,
            ):
                tls.recv(1)
            assert why in str(raised.value)
        assert gateway.client.post(INFER, json=BODY).is_success


def test_files_that_are_being_replaced(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """A new certificate beside the old key waits for its key, which is told once."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    old, new = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    old.cert_chain_pems[0].write_to_path(str(cert))
    old.private_key_pem.write_to_path(str(key))
    certificate = Certificate(cert, key)
    assert not certificate.renew()
    new.cert_chain_pems[0].write_to_path(str(cert))
    for _ in range(3):
        assert not certificate.renew()
    (said,) = caplog.messages
    assert "the certificate was not reloaded" in said
    with pytest.raises(TlsError, match="does not match the certificate"):
        Certificate(cert, key)
    new.private_key_pem.write_to_path(str(key))
    assert certificate.renew()
    cert.unlink()
    assert not certificate.renew()
    assert repr(certificate) == f"<Certificate {cert}>"


def test_files_that_change_while_no_descriptor_is_left(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """`ssl` reads files only, so it needs several: a flood may have taken them."""
    path = tmp_path / "server.pem"
    chain = authority.issue_cert("localhost").private_key_and_cert_chain_pem
    chain.write_to_path(str(path))
    certificate = Certificate(path)
    new = authority.issue_cert("localhost").private_key_and_cert_chain_pem
    new.write_to_path(str(path))
    with no_descriptors(but=1):
        for _ in range(2):
            assert not certificate.renew()
    (said,) = caplog.messages
    assert "the certificate was not reloaded, the old one stays in use" in said
    assert "Too many open files" in said
    assert certificate.renew()


def test_files_that_become_what_is_none(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe is not waited for, and no file is read without end."""
    cert, key, clients = (tmp_path / name for name in ("cert", "key", "clients"))
    issued = authority.issue_cert("localhost")

    def write() -> None:
        for path in (cert, key, clients):
            path.unlink(missing_ok=True)
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        authority.cert_pem.write_to_path(str(clients))

    write()
    certificate = Certificate(cert, key, clients)
    for path in (cert, key, clients):
        path.unlink()
        os.mkfifo(path)
        assert not certificate.renew()
        path.unlink()
        path.touch()
        os.truncate(path, 200 << 20)
        assert not certificate.renew()
        write()
        assert certificate.renew()
        pipe, huge = (m for m in caplog.messages if "not reloaded" in m)
        caplog.clear()
        assert f"{path}: cannot be read: it is not a regular file" in pipe
        assert f"{path}: is larger than 1 MiB" in huge
    cert.unlink()
    os.mkfifo(cert)
    with pytest.raises(TlsError, match="not a regular file"):
        Certificate(cert, key)


@pytest.mark.parametrize("begins", [-90, 1])
def test_what_does_not_count_replaces_nothing_that_does(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture, begins: int
) -> None:
    path = tmp_path / "server.pem"

    def issue_from(start: int, end: int) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        issued = authority.issue_cert(
            "localhost",
            not_before=now + timedelta(start),
            not_after=now + timedelta(end),
        )
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))

    issue_from(-1, 30)
    certificate = Certificate(path)
    before = certificate.expires
    issue_from(begins, begins + 89)
    for _ in range(2):
        assert not certificate.renew()
    assert certificate.expires == before
    (said,) = caplog.messages
    why = "it has expired" if begins < 0 else "it is not valid yet"
    assert f"{path}: {why}" in said
    issue_from(-1, 20)
    assert certificate.renew()
    # Of two that have expired the later one is as good.
    issue_from(-90, -1)
    certificate = Certificate(path)
    issue_from(-90, -2)
    assert certificate.renew()


def test_times_that_cannot_be_read_replace_nothing(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL loads a certificate whose month is 99."""
    now = datetime.now(UTC).replace(microsecond=0)
    issued = authority.issue_cert("localhost", not_after=now + timedelta(30))
    key, pem = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
    path = tmp_path / "server.pem"
    path.write_bytes(key + pem)
    certificate = Certificate(path)
    ends = (now + timedelta(30)).strftime("%y%m%d%H%M%SZ").encode()
    der = ssl.PEM_cert_to_DER_cert(pem.decode()).replace(ends, b"269901000000Z")
    path.write_bytes(key + ssl.DER_cert_to_PEM_cert(der).encode())
    assert not certificate.renew()
    assert f"{path}: the period of validity cannot be read" in caplog.text
    with pytest.raises(TlsError, match="period of validity cannot be read"):
        Certificate(path)
    issue(authority, tmp_path)
    assert certificate.renew()


@pytest.mark.parametrize("days", [-1, 6, 8])
def test_a_certificate_that_expires_is_told_once(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    path = tmp_path / "server.pem"
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days)
    begins = ends - timedelta(90)
    issued = authority.issue_cert("localhost", not_before=begins, not_after=ends)
    issued.private_key_and_cert_chain_pem.write_to_path(str(path))
    certificate = Certificate(path)
    assert certificate.expires == ends.timestamp()
    for _ in range(3):
        assert not certificate.renew()
    said = "has expired:" if days < 0 else "expires"
    expected = f"the certificate of {path} {said} {ends:%Y-%m-%d %H:%M} UTC"
    assert caplog.messages == ([expected] if days < 7 else [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tls-cert", "none.pem"], "none.pem: cannot be read: No such"),
        (
            ["--tls-cert", "server.pem", "--tls-key", "none.pem"],
            "none.pem: cannot be read: No such",
        ),
        (
            ["--tls-cert", "text.pem"],
            "text.pem: the file holds no certificate in PEM form",
        ),
        (["--tls-cert", "half.pem"], "half.pem: the certificate, or the key in"),
        (["--tls-cert", "alone.pem"], "name the file with the key by --tls-key"),
        (["--tls-cert", "locked.pem"], "locked.pem: the private key has a password"),
        (
            ["--tls-cert", "server.pem", "--tls-key", "text.pem"],
            "text.pem: the file holds no",
        ),
        (["--tls-cert", "server.pem", "--tls-client-ca", "text.pem"], "text.pem"),
        (["--tls-key", "server.pem"], "error: TLS needs a certificate"),
    ],
)
def test_serve_says_what_is_wrong(
    tmp_path: Path, authority: trustme.CA, options: list[str], problem: str
) -> None:
    issue(authority, tmp_path)
    (tmp_path / "text.pem").write_text("no PEM")
    issued = authority.issue_cert("localhost")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    chain = issued.cert_chain_pems[0].bytes()
    (tmp_path / "locked.pem").write_bytes(locked + chain)
    (tmp_path / "alone.pem").write_bytes(chain)
    whole = (tmp_path / "server.pem").read_bytes()
    (tmp_path / "half.pem").write_bytes(whole[:-200])
    words = [str(tmp_path / o) if o.endswith(".pem") else o for o in options]
    done = run_popgate("serve", "--port", "0", "-m", tmp_path, *words)
    assert done.returncode in (1, 2)
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
