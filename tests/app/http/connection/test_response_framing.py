"""Answers of applications as bytes: h11 reads them."""

from __future__ import annotations

import h11
import pytest

from app.codec.messages import Header
from app.http.connection.response_framing import STATUS_LINE, ResponseFramer

LENGTH = (b"content-length", b"5")


def read(sent: bytes, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of what is one whole answer."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(sent)
    response = client.next_event()
    assert isinstance(response, h11.Response)
    body = b""
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert client.trailing_data == (b"", False)
    return response.status_code, dict(response.headers), body


def sent(
    *parts: bytes,
    status: int = 200,
    headers: tuple[Header, ...] = (),
    keep_alive: bool = True,
    is_to_head: bool = False,
) -> bytes:
    framer = ResponseFramer(keep_alive, is_to_head)
    written = [framer.head(status, headers)]
    written += [bytes(framer.body(part, True)) for part in parts[:-1]]
    written.append(bytes(framer.body(parts[-1], False)))
    return b"".join(written)


@pytest.mark.parametrize(
    "parts", [[b""], [b"hello"], [b"he", b"", b"llo"], [b"a", b""]]
)
def test_a_body_of_unknown_length_goes_in_chunks(parts: list[bytes]) -> None:
    status, headers, body = read(sent(*parts, status=404))
    assert (status, body) == (404, b"".join(parts))
    assert headers[b"transfer-encoding"] == b"chunked"


@pytest.mark.parametrize("headers", [(), ((b"transfer-encoding", b"chunked"),)])
def test_a_client_of_http_1_0_reads_to_the_end(headers: tuple[Header, ...]) -> None:
    """Chunks are none of its framings (RFC 9112, 6.1)."""
    framer = ResponseFramer(False, False, knows_chunks=False)
    head = framer.head(200, headers)
    assert (b"chunked" in head, b"connection: close" in head) == (False, True)
    parts = [bytes(framer.body(part, part != b"")) for part in (b"he", b"llo", b"")]
    assert parts == [b"he", b"llo", b""]


def test_a_body_with_a_length_goes_as_it_is() -> None:
    written = sent(b"he", b"llo", headers=((b"Content-Length", b"5"),))
    assert read(written)[2] == b"hello"
    assert written.endswith(b"\r\n\r\nhello")


def test_answers_without_a_body() -> None:
    for status in (204, 304):
        assert read(sent(b"", status=status))[0] == status
    written = sent(b"hello", headers=(LENGTH,), is_to_head=True)
    assert read(written, "HEAD")[2] == b""


@pytest.mark.parametrize(
    ("keep_alive", "said", "closes"),
    [(True, b"", False), (False, b"", True), (True, b"x, Close", True)],
)
def test_the_last_answer_of_a_connection_says_so(
    keep_alive: bool, said: bytes, closes: bool
) -> None:
    framer = ResponseFramer(keep_alive, False)
    headers = ((b"connection", said),) if said else ()
    head = framer.head(200, headers).lower()
    assert (head.count(b"close"), framer.keep_alive) == (int(closes), not closes)


@pytest.mark.parametrize("name", [b"a b", b"a:", b"a\r\nb", b"a\0"])
def test_names_of_headers_are_names(name: bytes) -> None:
    framer = ResponseFramer(True, False)
    with pytest.raises(RuntimeError, match="name of a header"):
        framer.head(200, [(name, b"x")])


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\n", b"\0", b"\x7f"])
def test_a_value_cannot_hold_another_header(value: bytes) -> None:
    with pytest.raises(RuntimeError, match="value of the header b'x-a'"):
        ResponseFramer(True, False).head(200, [(b"x-a", value)])


@pytest.mark.parametrize(("part", "why"), [(b"hello!", "longer"), (b"hell", "shorter")])
def test_a_length_has_to_be_kept(part: bytes, why: str) -> None:
    with pytest.raises(RuntimeError, match=f"{why} than its Content-Length"):
        sent(part, headers=(LENGTH,))


def test_status_lines() -> None:
    assert STATUS_LINE[404] == b"HTTP/1.1 404 Not Found\r\n"
    assert STATUS_LINE[499] == b"HTTP/1.1 499 \r\n"
