"""Who may manage."""

from __future__ import annotations

import base64

import pytest

from app.errors import HttpError
from app.http.access import check_management

LOCAL = {"host": "127.0.0.1:8000"}


def refused(headers: dict[str, str], client: str | None, key: str | None) -> HttpError:
    with pytest.raises(HttpError) as caught:
        check_management(headers, client, key)
    return caught.value


@pytest.mark.parametrize(
    "client", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"]
)
@pytest.mark.parametrize(
    "host",
    ["", "localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "a.localhost"],
)
def test_this_machine_may(client: str, host: str) -> None:
    check_management({"host": host} if host else {}, client, None)


def test_a_unix_socket_may() -> None:
    check_management({}, None, None)


@pytest.mark.parametrize("client", ["10.0.0.1", "192.168.1.5", "::2", "not an address"])
def test_other_machines_may_not(client: str) -> None:
    error = refused(LOCAL, client, None)
    assert error.status == 403
    assert client in str(error)
    assert "--api-key" in str(error)


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "via", "x-real-ip"])
def test_a_proxy_may_not(name: str) -> None:
    assert refused({**LOCAL, name: "1.2.3.4"}, "127.0.0.1", None).status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "[", "localhost.x"]
)
def test_another_name_for_this_machine_may_not(host: str) -> None:
    assert refused({"host": host}, "127.0.0.1", None).status == 403


def test_pages_of_others_may_not() -> None:
    own = {**LOCAL, "origin": "http://127.0.0.1:8000"}
    check_management(own, "127.0.0.1", None)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9000"):
        error = refused({**LOCAL, "origin": origin}, "127.0.0.1", None)
        assert error.status == 403


def test_every_way_to_send_the_key() -> None:
    basic = base64.b64encode(b"anybody:secret").decode()
    for headers in (
        {"authorization": "Bearer secret"},
        {"authorization": "bearer  secret"},
        {"x-api-key": "secret"},
        {"authorization": f"Basic {basic}"},
    ):
        check_management(headers, "10.0.0.1", "secret")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer secre"},
        {"authorization": "Bearer sécret"},
        {"authorization": "Basic !"},
        {"authorization": "Digest secret"},
        {"x-api-key": ""},
        {"x-api-key": "secret "},
    ],
)
def test_a_wrong_key_or_none(headers: dict[str, str]) -> None:
    error = refused(headers, "127.0.0.1", "secret")
    assert error.status == 401
    assert (b"www-authenticate", b"Bearer") in error.headers
    assert "secret" not in str(error)
