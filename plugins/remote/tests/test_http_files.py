"""Files over HTTP, from a real socket."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from app.repository.model_sources import RemoteError
from plugins.remote.tests.web import Answer, Web, serving
from popgate_remote import http_files
from popgate_remote.errors import SourceAway, SourceChanged
from popgate_remote.http_files import MAX_DOCUMENT, HttpFiles, WebSource, check_redirect

BODY = bytes(range(256)) * 1000


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as found:
        yield found


@pytest.fixture
def files() -> Iterator[HttpFiles]:
    found = HttpFiles("set MY_TOKEN")
    yield found
    found.close()


def read(
    files: HttpFiles, url: str, start: int = 0, tag: str = ""
) -> tuple[int, bytes]:
    with files.file(url, start, tag) as (begins, chunks):
        return begins, b"".join(chunks)


def test_a_file_is_read_from_where_it_stopped(web: Web, files: HttpFiles) -> None:
    answer = web.put("/m.onnx", BODY)
    url = f"{web.url}/m.onnx"
    assert read(files, url) == (0, BODY)
    assert read(files, url, 1000, answer.etag or "") == (1000, BODY[1000:])
    answer.takes_ranges = False
    assert read(files, url, 1000) == (0, BODY)
    assert web.ranges() == ["bytes=1000-"] * 2


def test_only_a_whole_file_is_taken(web: Web, files: HttpFiles) -> None:
    url = f"{web.url}/m.onnx"
    part = {"Content-Range": f"bytes 0-{len(BODY) - 1}/{2 * len(BODY)}"}
    web.answers["/m.onnx"] = Answer(BODY, 206, part)
    with pytest.raises(RemoteError, match=r"sent a part \(206\); expected the whole"):
        read(files, url)
    web.answers["/m.onnx"] = Answer(BODY, headers={"Content-Encoding": "gzip"})
    with pytest.raises(RemoteError, match="sent content-encoding 'gzip'"):
        read(files, url)
    web.answers["/m.onnx"] = Answer(BODY, headers={"Content-Encoding": "identity"})
    assert read(files, url) == (0, BODY)


def test_another_file_is_noticed(web: Web, files: HttpFiles) -> None:
    web.put("/m.onnx", BODY)
    url = f"{web.url}/m.onnx"
    with pytest.raises(SourceChanged, match="has changed"):
        read(files, url, 0, '"another"')
    with pytest.raises(SourceChanged, match="has become shorter"):
        read(files, url, len(BODY) + 1)


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (403, RemoteError, r"denies access \(403\); set MY_TOKEN"),
        (401, RemoteError, r"denies access \(401\)"),
        (404, RemoteError, "does not exist"),
        (503, SourceAway, "answered with status 503"),
        (429, SourceAway, "answered with status 429"),
        (300, RemoteError, "answered with status 300, which PopGate does not support"),
    ],
)
def test_what_a_server_answers_is_told(
    web: Web, files: HttpFiles, status: int, kind: type[Exception], text: str
) -> None:
    web.answers["/m.onnx"] = Answer(status=status)
    with pytest.raises(kind, match=text) as raised:
        read(files, f"{web.url}/m.onnx?signature=secret")
    assert "secret" not in str(raised.value)


def test_nobody_there(files: HttpFiles) -> None:
    with serving() as web:
        url = web.url
    with pytest.raises(SourceAway, match="refused"):
        read(files, f"{url}/m.onnx")


def test_documents_are_bounded_and_are_json(web: Web, files: HttpFiles) -> None:
    web.put("/good", b'{"a": 1}')
    web.put("/bad", b"<html>")
    web.put("/endless", b" " * (MAX_DOCUMENT + 1))
    assert files.document(f"{web.url}/good") == {"a": 1}
    with pytest.raises(RemoteError, match="invalid JSON"):
        files.document(f"{web.url}/bad")
    with pytest.raises(RemoteError, match="answered with more than"):
        files.document(f"{web.url}/endless")


def redirect(url: str, to: str) -> httpx.Response:
    request = httpx.Request("GET", url)
    return httpx.Response(302, headers={"location": to}, request=request)


@pytest.mark.parametrize("has_digest", [False, True])
def test_tls_is_not_given_up_on_the_way(has_digest: bool) -> None:
    for to in ("https://b.example/m", "/n", "//c.example/m"):
        check_redirect(redirect("https://a.example/m", to), has_digest=has_digest)
    with pytest.raises(RemoteError, match=r"a.example redirects to a URL without TLS"):
        check_redirect(
            redirect("https://a.example/m", "http://b.example/m"), has_digest=has_digest
        )


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://a.example/m"])
def test_redirects_lead_to_http(scheme: str, to: str) -> None:
    with pytest.raises(RemoteError, match="redirects to a URL that is not http or"):
        check_redirect(redirect(f"{scheme}://a.example/m", to), has_digest=True)


def test_no_other_host_is_asked_without_tls_or_a_digest(web: Web) -> None:
    """127.0.0.2 is this machine too, but none of the names of the loopback."""
    elsewhere = web.url.replace("127.0.0.1", "127.0.0.2")
    web.put("/far.onnx", b"").status = 302
    web.answers["/far.onnx"].headers = {"Location": f"{elsewhere}/m.onnx"}
    web.put("/near.onnx", b"").status = 302
    web.answers["/near.onnx"].headers = {"Location": "/m.onnx"}
    web.put("/m.onnx", BODY)
    with closing(WebSource(f"{web.url}/near.onnx")) as near:
        (found,) = near.files()
    assert found.size == len(BODY)
    url = f"{web.url}/far.onnx"
    with (
        closing(WebSource(url)) as far,
        pytest.raises(RemoteError, match=r"redirects to 127\.0\.0\.2 without") as why,
    ):
        list(far.files())
    assert not isinstance(why.value, SourceAway)
    # With a digest it is asked: there is nobody.
    with closing(WebSource(url, "0" * 64)) as checked, pytest.raises(SourceAway):
        list(checked.files())


def test_one_file_of_the_web(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", "/nowhere")
    answer = web.put("/a/my%20net.onnx", BODY)
    source = WebSource(f"{web.url}/a/my%20net.onnx")
    (found,) = source.files()
    assert (found.name, found.size, found.tag) == (
        "my net.onnx",
        len(BODY),
        answer.etag,
    )
    assert source.checksums(found) == ()
    with source.open(found, 10) as (begins, chunks):
        assert (begins, b"".join(chunks)) == (10, BODY[10:])
    source.close()
    readme = WebSource(f"{web.url}/readme.txt")
    with closing(readme), pytest.raises(RemoteError, match="ends in "):
        list(readme.files())


def test_users_of_netrc_are_used(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    web.put("/m.onnx", BODY)
    with closing(WebSource(f"{web.url}/m.onnx")) as source:
        list(source.files())
    assert web.authorizations == ["Basic bWU6c2VjcmV0"]


class Dripping(http.server.BaseHTTPRequestHandler):
    """Sends a byte of its answer now and then, for as long as anyone listens."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not threading.Event().wait(0.005):
                self.wfile.write(b"x")

    def log_message(self, *words: object) -> None:
        """Nothing."""


def test_who_drips_is_not_listened_to_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_files, "WATCHED", 0.2)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever).start()
        files = http_files.HttpFiles("")
        url = f"http://127.0.0.1:{server.server_port}/m.onnx?secret"
        try:
            with (
                pytest.raises(RemoteError, match=r"m.onnx sends .* a second") as raised,
                files.file(url, 0) as (_, chunks),
            ):
                for _ in chunks:
                    pass
            assert "secret" not in str(raised.value)
            with pytest.raises(RemoteError, match="the download was stopped"):
                files.body(url)
        finally:
            files.close()
            server.shutdown()


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nx: ", id="head"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", id="chunk"
        ),
        pytest.param(b"HTTP/1.1 302 Found\r\nlocation: /", id="redirect"),
    ],
)
def test_a_part_that_drips_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    """Only whole heads and chunks count, not the bytes of their beginnings."""
    monkeypatch.setattr(http_files, "WATCHED", 0.2)
    dripped = 0

    class Beginning(Dripping):
        def do_GET(self) -> None:
            nonlocal dripped
            self.wfile.write(beginning)
            with contextlib.suppress(OSError):
                # It ends one day, so that this test fails and does not hang.
                while dripped < 2_000 and not threading.Event().wait(0.005):
                    dripped += self.wfile.write(b"x")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Beginning) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/m.onnx?secret"
        try:
            with (
                closing(HttpFiles("")) as files,
                pytest.raises(RemoteError, match=r"m.onnx sends no whole") as raised,
            ):
                files.body(url)
            assert "secret" not in str(raised.value)
            assert dripped < 2_000
        finally:
            server.shutdown()


def test_the_body_of_a_redirect_is_not_read(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have no end, or stall."""
    monkeypatch.setattr(http_files, "TIMEOUT", 0.5)
    web.put("/there.onnx", BODY)
    moved = web.put("/m.onnx", bytes(1 << 20))
    moved.status, moved.headers = 302, {"Location": "/there.onnx"}
    moved.gate = threading.Event()  # never set: its second half does not come
    files = HttpFiles("")
    try:
        assert read(files, f"{web.url}/m.onnx") == (0, BODY)
    finally:
        files.close()
        moved.gate.set()
