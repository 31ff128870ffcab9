"""What becomes of a head: which requests become exchanges, and the scope of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from app.errors import HttpError
from app.http.application import FrontOptions
from app.http.asgi import BARE, BASE, CONNECTION, NAMES
from app.http.connection.dispatch import Dispatch, check_extra
from app.http.connection.ends import Ends
from app.http.connection.framing import Framer, Head
from app.http.connection_limit import Entry
from app.http.front import InferFront
from app.serving.service import Service
from app.serving.table import ModelTable
from tests.app.fronts import Doubler, front, teapot

PATH = "/v1/models/m/infer"


class Peer:
    """A connection, as far as a head needs one."""

    def __init__(
        self, base: str = "", is_bare: bool = False, names: tuple[str, ...] = ()
    ) -> None:
        self.base = base
        self.is_bare = is_bare
        self.ends = Ends(("192.0.2.2", 80), ("192.0.2.1", 4), "http", names)

    def client_of(self, headers: Mapping[bytes, bytes]) -> str:
        return "192.0.2.1"


def head(sent: str) -> Head:
    framer = Framer()
    framer.feed(sent.replace("\n", "\r\n").encode(), 0)
    assert framer.head is not None, framer.error
    return framer.head


def post(*headers: str, path: str = PATH, version: str = "1.1") -> Head:
    lines = [f"POST {path} HTTP/{version}", "Host: x", *headers, "", ""]
    return head("\n".join(lines))


@pytest.mark.parametrize(
    ("asked", "is_exchange"),
    [
        (post("Content-Length: 5"), True),
        (post("Content-Length: 0"), True),
        (post("Content-Length: 5", path="/v1/models/%6d/infer?x"), True),
        (post("Content-Length: 5", "Accept: application/json"), True),
        (post("Content-Length: 5", path="/v1/models/none/infer"), False),
        (post("Content-Length: 5", version="1.0"), False),
        (post("Content-Length: 99999999999"), False),
        (post(), False),
        (post("Transfer-Encoding: chunked"), False),
        (post("Content-Length: 5", "Content-Encoding: gzip"), False),
        (post("Content-Length: 5", "Expect: 100-continue"), False),
        (post("Content-Length: 5", "Accept: text/event-stream"), False),
        (head(f"PUT {PATH} HTTP/1.1\nHost: x\nContent-Length: 5\n\n"), False),
    ],
)
def test_a_usual_inference_needs_no_application(asked: Head, is_exchange: bool) -> None:
    connection: Any = Peer()
    found = Dispatch(front(Doubler())).exchange(asked, connection, ())
    assert (found is not None) == is_exchange
    if found is not None:
        assert found.path == PATH
        assert found.keep_alive


def test_a_scope_has_what_asgi_asks_for() -> None:
    peer, ending = Peer("/base", is_bare=True, names=("CN=shop",)), object()
    asked = head("GET /a%20b?c=%64 HTTP/1.0\nA: b\n\n")
    state = {"x": 1}
    scope = Dispatch(front(Doubler())).scope(asked, peer, ending, state)
    assert dict(scope) == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0",
        "server": ("192.0.2.2", 80),
        "client": ("192.0.2.1", 4),
        "scheme": "http",
        "method": "GET",
        "root_path": "",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"c=%64",
        "headers": [(b"a", b"b")],
        "state": state,
        CONNECTION: ending,
        BASE: "/base",
        BARE: True,
        NAMES: ("CN=shop",),
    }
    assert scope["state"] is not state


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (b"/b/x?y", (b"/x?y", "/b", False)),
        (b"/b", (b"/", "/b", True)),
        (b"/b?y", (b"/?y", "/b", True)),
        (b"/bx", (b"/bx", "", False)),
        (b"/x", (b"/x", "", False)),
    ],
)
def test_the_base_path_is_taken_off(url: bytes, found: tuple[bytes, str, bool]) -> None:
    behind = InferFront(teapot, Service(ModelTable()), FrontOptions(base_path="/b"))
    assert Dispatch(behind).target(url) == found
    assert Dispatch(front(Doubler())).target(url) == (url, "", False)


def test_beyond_the_limit_there_is_health_and_management() -> None:
    for asked in ("GET /v1/health/live", "POST /v1/models/m/load"):
        check_extra(head(f"{asked} HTTP/1.1\nHost: x\n\n"), Entry.EXTRA)
    for entry, why in (
        (Entry.EXTRA, r"--max-connections\)"),
        (Entry.EXTRA_OF_ADDRESS, "--max-connections-per-address"),
    ):
        with pytest.raises(HttpError, match=why) as refused:
            check_extra(post("Content-Length: 5"), entry)
        assert refused.value.status == 503
