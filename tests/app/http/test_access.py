"""Who may manage."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from app.config.keys import KEY_GROUPS, Group, KeyConfig, KeysConfig, digest_of
from app.config.restrictions import Restrictions
from app.errors import HttpError
from app.http.access import Access, Trust, key_group, model_of
from app.main import ROUTERS
from app.plugins import ROUTES as PLUGIN_ROUTES
from app.plugins import plugin_names
from app.serving.keys import Key, Keys
from tests.app import fronts
from tests.app.fronts import Client, Doubler
from tests.app.http.connection.test_protocol import Wire
from tests.app.served import ServedGateway, run_popgate
from tests.engine import models
from tests.support import until

LOCAL = {"host": "127.0.0.1:8000"}
LOAD = "/v2/repository/models/m/load"


def check_management(
    headers: dict[str, str],
    client: str | None,
    key: str | None,
    trust: Trust = Trust.LOOPBACK,
    path: str = LOAD,
) -> None:
    """What a request to load a model gets, with `key` as --api-key."""
    pairs = {k.encode(): v.encode() for k, v in headers.items()}
    restrictions = Restrictions(["logging:admin=yes"])
    access = Access(restrictions, Keys(None, key), trust)
    access.check(path, "POST", pairs, client)


def refused(
    headers: dict[str, str],
    client: str | None,
    key: str | None,
    trust: Trust = Trust.LOOPBACK,
) -> HttpError:
    with pytest.raises(HttpError) as caught:
        check_management(headers, client, key, trust)
    return caught.value


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", None])
def test_nobody_is_believed_to_be_this_machine(client: str | None) -> None:
    """A proxy on it makes everybody look so; --uds may have one before it as well."""
    error = refused(LOCAL, client, None, Trust.NOBODY)
    assert (error.status, error.code) == (403, "management_is_closed")
    for way in ("--management-socket", "--trust-loopback", "--api-key", "--keys"):
        assert way in str(error)


def test_the_management_socket_is_believed_but_for_a_proxy() -> None:
    check_management({"host": "whatever"}, None, None, Trust.SOCKET)
    error = refused({"x-forwarded-for": "1.2.3.4"}, None, None, Trust.SOCKET)
    assert error.status == 403
    assert refused({}, None, "secret", Trust.SOCKET).status == 401


def test_a_header_that_guards_management_is_enough() -> None:
    path = "/v2/logging"
    with pytest.raises(HttpError, match="restricted"):
        check_management({}, "10.0.0.1", None, Trust.NOBODY, path)
    check_management({"admin": "yes"}, "10.0.0.1", None, Trust.NOBODY, path)
    assert refused({"admin": "yes"}, "10.0.0.1", None, Trust.NOBODY).status == 403
    with pytest.raises(HttpError, match="an API key is required"):
        check_management({"admin": "yes"}, "10.0.0.1", "secret", Trust.NOBODY, path)


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
    assert "--trust-loopback expects localhost, no proxy" in str(error)
    assert "with --trust-loopback to trust" not in str(error)


@pytest.mark.parametrize(
    "name", ["x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-proto"]
)
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
    for origin in ("http://evil.example", "null", "http://[", "http://127.0.0.1:9000"):
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


@pytest.mark.parametrize(
    ("key", "status"), [("right", None), ("wrong", 401), ("", 401)]
)
def test_authorization_beside_a_key_may_be_for_a_proxy(
    key: str, status: int | None
) -> None:
    """X-API-Key is the one that counts, right or wrong."""
    access = access_with(config("right"))
    of_key = {b"x-api-key": b"key of " + key.encode()}
    for other in (b"Bearer key of right", b"Bearer a.b.c", b"Basic !"):
        try:
            headers = {**of_key, b"authorization": other}
            access.check("/v1/models", "GET", headers, "10.0.0.1")
            found = None
        except HttpError as error:
            found = error.status
        assert found == status


def test_of_two_headers_with_a_say_neither_counts() -> None:
    access = Access(Restrictions(["logging:admin=yes"]))
    twice = [(b"x", b"1"), (b"x", b"1")]
    access.check_once([*twice, (b"host", b"a")])
    for name in (b"host", b"authorization", b"x-api-key", b"admin"):
        with pytest.raises(HttpError, match=f"one header '{name.decode()}', got 2"):
            access.check_once([*twice, (name, b"yes"), (name, b"yes")])


# -- groups: every route is in one

#: Method and path, with names in place of parameters; a new route needs a line.
ROUTES: dict[Group | None, set[str]] = {
    None: {f"GET /v{v}/health/{what}" for v in (1, 2) for what in ("live", "ready")}
    | {f"GET /v2/models/name{version}/ready" for version in ("", "/versions/version")}
    | {"GET /v1/health/startup"},
    "metrics": {"GET /metrics"},
    "manage": {"POST /v1/drain"}
    | {f"POST /v1/models/name/{verb}" for verb in ("load", "unload")}
    | {f"POST /v2/repository/models/name/{verb}" for verb in ("load", "unload")},
}


def routes() -> set[str]:
    """Every method and path of the core, and an unknown path, as pages of plugins."""
    found = {"GET /nothing"}
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            path = re.sub(r"\{(\w+)(:path)?\}", r"\1", route.path)
            found |= {f"{verb} {path}" for verb in route.methods or ()}
    return found


def test_every_route_is_in_the_group_that_one_would_think() -> None:
    groups: dict[Group | None, set[str]] = {}
    for route in routes():
        method, path = route.split()
        groups.setdefault(key_group(path, method), set()).add(route)
    assert groups.keys() == {None, "infer", "metadata", "manage", "metrics", "pages"}
    assert groups["pages"] == {"GET /nothing"}
    for group, expected in ROUTES.items():
        regions = {r for r in groups[group] if "sharedmemory" in r}
        repositories = {r for r in groups[group] if "/repository/repository/" in r}
        assert groups[group] - regions - repositories == expected, group
    assert all(
        "sharedmemory" not in r for g, rs in groups.items() for r in rs if g != "manage"
    )
    for route in groups["infer"]:
        assert re.search(r"infer|generate|predict", route), route
    changing = {r for r in groups["metadata"] if not r.startswith(("GET", "HEAD"))}
    assert all(r.endswith("/index") for r in changing), changing


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v2/models/a/infer", "a"),
        ("/v1/models/a:predict", "a"),
        ("/v1/models/a/versions/3:predict", "a"),
        ("/v2/models/a\nb/infer", "a\nb"),
        ("/v2/repository/models/a/load", "a"),
        ("/v2/repository/x/models/a/unload", "a"),
        ("/v2/models/stats", None),
        ("/v2/models", None),
        ("/metrics", None),
    ],
)
def test_the_model_of_a_path(path: str, model: str | None) -> None:
    assert model_of(path) == model


# -- keys of a file


def access_with(*keys: KeyConfig, anonymous: tuple[Group, ...] = ()) -> Access:
    found = Keys(None, "root")
    found.path = Path("keys.toml")  # as if they came from one
    found.take_over(KeysConfig(anonymous, keys))
    return Access(keys=found)


def config(name: str, *groups: Group, models: tuple[str, ...] = ("*",)) -> KeyConfig:
    digest = digest_of(f"key of {name}".encode())
    return KeyConfig(name, digest, groups or ("infer", "metadata"), models)


def verdict(access: Access, route: str, key: str = "") -> Key | int | None:
    """The key that lets it in, None without one, or the status of the refusal."""
    method, path = route.split()
    headers = {b"x-api-key": key.encode()} if key else {}
    try:
        return access.check(path, method, headers, "10.0.0.1")
    except HttpError as error:
        return error.status


def test_a_key_opens_its_groups_and_nothing_else() -> None:
    access = access_with(*(config(g, g) for g in KEY_GROUPS))
    seen = set()
    for route in sorted(routes()):
        method, path = route.split()
        group = key_group(path, method)
        seen.add(group)
        if group is None:
            assert verdict(access, route) is None
            continue
        assert verdict(access, route) == 401
        assert verdict(access, route, "key of nobody") == 401
        for other in KEY_GROUPS:
            found = verdict(access, route, f"key of {other}")
            if other == group:
                assert isinstance(found, Key), route
                assert found.config.name == group
            else:
                assert found == 403, (route, other)
        assert isinstance(verdict(access, route, "root"), Key)
    assert seen == {None, *KEY_GROUPS}


def test_every_route_counts_for_the_rate_and_asks_for_the_model() -> None:
    slow = replace(config("slow", *KEY_GROUPS), requests_per_second=0.001)
    elsewhere = config("elsewhere", *KEY_GROUPS, models=("elsewhere",))
    for route in sorted(routes()):
        access = access_with(slow, elsewhere)
        method, path = route.split()
        group = key_group(path, method)
        if group is None:
            assert verdict(access, route, "key of elsewhere") is None
            continue
        found = verdict(access, route, "key of elsewhere")
        assert isinstance(found, Key) if model_of(path) is None else found == 403, route
        key = verdict(access, route, "key of slow")
        assert isinstance(key, Key), route
        if group == "infer":  # counted where it begins: the rest of it is of no use
            key.enter()
            with pytest.raises(HttpError) as caught:
                key.enter()
            assert caught.value.status == 429
        else:
            assert verdict(access, route, "key of slow") == 429, route


def test_a_key_opens_its_models() -> None:
    access = access_with(config("a", models=("digits", "rank-*")))
    for name, allowed in (
        ("digits", True), ("digitss", False), ("rank-1", True), ("rank", False)
    ):  # fmt: skip
        for route in (f"POST /v2/models/{name}/infer", f"GET /v1/models/{name}"):
            found = verdict(access, route, "key of a")
            assert isinstance(found, Key) if allowed else found == 403, route
    assert isinstance(verdict(access, "GET /v2/models/stats", "key of a"), Key)
    assert verdict(access, "POST /v2/models/rank-1/infer", "key of a ") == 401


def test_anonymous_groups_need_no_key_but_no_wrong_one() -> None:
    access = access_with(config("a", "infer"), anonymous=("metadata", "pages"))
    assert verdict(access, "GET /v2") is None
    assert verdict(access, "GET /docs") is None
    assert isinstance(verdict(access, "GET /v2", "key of a"), Key)
    assert verdict(access, "GET /v2", "wrong") == 401
    assert verdict(access, "GET /metrics") == 401


def test_what_is_open_to_all() -> None:
    assert Access().open_groups == ("infer", "metadata", "metrics", "pages")
    guarded = Access(Restrictions(["inference,metadata:a=b"]))
    assert guarded.open_groups == ("metadata", "metrics", "pages")
    assert access_with(anonymous=("pages", "infer")).open_groups == ("infer", "pages")


def test_a_browser_is_asked_for_a_password() -> None:
    access = access_with(config("a", "pages"))
    with pytest.raises(HttpError) as caught:
        access.check("/docs", "GET", {}, "10.0.0.1")
    assert caught.value.headers[0][1].startswith(b"Basic ")
    password = base64.b64encode(b":key of a").decode()
    headers = {b"authorization": f"Basic {password}".encode()}
    assert access.check("/docs", "GET", headers, "10.0.0.1") is not None


def test_restrictions_hold_besides() -> None:
    access = Access(Restrictions(["inference:a=b"]), access_with(config("a")).keys)
    path, headers = "/v2/models/m/infer", {b"x-api-key": b"key of a"}
    with pytest.raises(HttpError, match="restricted"):
        access.check_inference(path, headers)
    assert access.check_inference(path, {**headers, b"a": b"b"}) is not None


def test_a_verdict_holds_as_long_as_the_rules() -> None:
    access = access_with(config("a"))
    rules = access.rules
    access.keys.take_over(KeysConfig((), (config("b"),)))
    assert access.rules is not rules
    assert verdict(access, "GET /v2", "key of a") == 401
    assert isinstance(verdict(access, "GET /v2", "key of b"), Key)


# -- over HTTP

BODY = {"inputs": {"input": [[1, 2, 3, 4]]}}
INFER = "/v1/models/affine/infer"


def write_keys(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


def entry(name: str, more: str = "") -> str:
    digest = digest_of(f"key of {name}".encode()).hex()
    return f'[[key]]\nname = "{name}"\nsha256 = "{digest}"\n{more}\n'


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    write_keys(
        path,
        entry("a", 'models = ["affine"]')
        + entry("b", 'models = ["other"]')
        + entry("slow", "requests_per_second = 0.001")
        + entry("see", 'groups = ["metadata", "metrics", "pages"]'),
    )
    return path


def as_key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key of {name}"}


#: Of requests by the key of `affine`: what might have `other` be asked, or be
#: read by one server in another way than by the next; and what it gets.
CHUNKED = b"Transfer-Encoding: chunked\r\n"
TRICKS: list[tuple[bytes, bytes, list[int]]] = [
    *(
        (b"/v1/models/%b/infer" % name, b"Content-Length: 2\r\n", [403, 404])
        for name in (
            b"%6fther",
            b"x/../other",
            b"affine%2f..%2fother",
            b"other%00",
            b"./other",
            b"%256fther",
            b"/other",
            b"OTHER",
            b"affine/../other",
            b"affine;/../other",
        )
    ),
    (b"//v1/models/other/infer", b"Content-Length: 2\r\n", [403, 404]),
    (b"/v2/../v1/models/other/infer", b"Content-Length: 2\r\n", [403, 404]),
    (b"http://x/v2/models/other/infer", b"Content-Length: 2\r\n", [403]),
    (b"/v1/models/other:predict", b"Content-Length: 2\r\n", [403]),
    (b"/v2/models/other/versions/1/infer", b"Content-Length: 2\r\n", [403]),
    (b"/v2/models/other/generate_stream", b"Content-Length: 2\r\n", [403]),
    (b"/v2/repository/models/affine/load", b"Content-Length: 2\r\n", [403]),
    (INFER.encode(), b"Content-Length: 2\r\n" + CHUNKED, [400]),
    (INFER.encode(), CHUNKED + b"Content-Length: 2\r\n", [400]),
    (INFER.encode(), b"Transfer-Encoding: gzip, chunked\r\n", [501]),
    (INFER.encode(), b"Transfer-Encoding: gzip\r\n" + CHUNKED, [501]),
    (INFER.encode(), b"Transfer-Encoding: chunked, identity\r\n", [400]),
    *(
        (INFER.encode(), framed + again, [400])
        for framed in (CHUNKED, b"Content-Length: 2\r\n")
        for again in (
            b"Host: y\r\n",
            b"x-api-key: key of a\r\n",
            b"X-API-Key: key of b\r\n",
            b"Authorization: Bearer key of a\r\n" * 2,
        )
    ),
    (INFER.encode(), b"X: a\r\n Content-Length: 2\r\n", [400]),
    (INFER.encode(), b"X: a\nContent-Length: 2\r\n", [400]),
    (INFER.encode(), b"X: a\0\r\nContent-Length: 2\r\n", [400]),
    (INFER.encode(), b"Content-Length : 2\r\n", [400]),
    (INFER.encode(), b"Content-Length: 0x2\r\n", [400]),
    (INFER.encode(), b"a:\r\n" * 20_000, [431]),
]


#: A model of another one.
OTHER = """
[[ensemble.step]]
model = "affine"
inputs = { input = "input" }
outputs = { output = "output" }
"""


def test_keys_over_http(tmp_path: Path, keys_file: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").write_text(OTHER)
    options = ("--keys", str(keys_file), "--metrics-port", "0")
    with ServedGateway(tmp_path, *options, POPGATE_API_KEY="root") as gateway:
        gateway.wait_ready()  # health needs none
        client = gateway.client

        def status(path: str, headers: dict[str, str], method: str = "POST") -> int:
            body = BODY if method == "POST" else None
            return client.request(method, path, json=body, headers=headers).status_code

        # The way past ASGI, and those through it.
        predict = ["/v1/models/affine:predict"] * bool(plugin_names(PLUGIN_ROUTES))
        for path in (INFER, f"{INFER}?x=1", *predict):
            for headers, expected in (
                ({}, 401),
                (as_key("nobody"), 401),
                (as_key("b"), 403),
                (as_key("see"), 403),
                (as_key("a"), 200),
                ({"X-API-Key": "root"}, 200),
            ):
                assert status(path, headers) == expected, (path, headers)
        for path in ("/v1/models", "/v1/devices", "/docs", "/openapi.json", "/metrics"):
            assert status(path, {}, "GET") == 401
            assert status(path, as_key("see"), "GET") == 200, path
        assert status("/v1/models/affine", as_key("b"), "GET") == 403
        # Who may ask a model may ask for what it calls, by way of it.
        assert status("/v1/models/other/infer", as_key("b")) == 200
        assert status("/v1/models/other/infer", as_key("a")) == 403
        assert status("/v1/models/affine/unload", as_key("a")) == 403
        assert status("/v2/nothing/of/ours", {}, "GET") == 401
        metrics = gateway.wait_line("metrics").split()[-1].removesuffix("/metrics")
        assert httpx.get(f"{metrics}/metrics").status_code == 401
        assert httpx.get(f"{metrics}/metrics", headers=as_key("see")).is_success

        for url, lines, expected_statuses in TRICKS:
            with Wire(gateway) as wire:
                key = b"X-API-Key: key of a\r\nConnection: close\r\n"
                head = b"POST %b HTTP/1.1\r\nHost: x\r\n%b%b\r\n" % (url, key, lines)
                body = b"2\r\n{}\r\n0\r\n\r\n" if b"chunked" in lines else b"{}"
                with contextlib.suppress(OSError):  # it was refused before
                    wire.send(head + body)
                assert wire.answer()[0] in expected_statuses, (url, lines)
        # A trailer is no header: it opens nothing.
        body = json.dumps(BODY).encode()
        trailer = b"%x\r\n%b\r\n0\r\nX-API-Key: root\r\n\r\n" % (len(body), body)
        with Wire(gateway) as wire:
            head = b"POST %b HTTP/1.1\r\nHost: x\r\n" % INFER.encode()
            wire.send(head + CHUNKED + b"\r\n" + trailer)
            assert wire.answer()[0] == 401

        # One request in a thousand seconds; a refusal leaves the connection open.
        assert status(INFER, as_key("slow")) == 200
        refused = client.post(INFER, json=BODY, headers=as_key("slow"))
        assert refused.status_code == 429
        assert refused.json()["code"] == "key_rate"
        assert 900 < int(refused.headers["Retry-After"]) <= 1000
        assert "connection" not in refused.headers
        assert status(INFER, {"X-API-Key": "root"}) == 200


def test_keys_come_and_go_under_load(tmp_path: Path, keys_file: Path) -> None:
    """No request of a key that stays fails, and none of one that went succeeds."""
    models.affine(tmp_path / "affine.popef")
    with ServedGateway(tmp_path, "--keys", str(keys_file)) as gateway:
        gateway.wait_ready()
        gateway.wait_line("open     health without a key, the rest to 4 keys")
        gateway.wait_line('manage   closed: no key has the group "manage"')
        ended = threading.Event()
        statuses: set[int] = set()
        asked = itertools.count()

        def load() -> None:
            with httpx.Client(base_url=gateway.url, headers=as_key("a")) as client:
                while not ended.is_set():
                    statuses.add(client.post(INFER, json=BODY).status_code)
                    next(asked)

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            # On one connection, whose head is remembered.
            new = httpx.Client(base_url=gateway.url, headers=as_key("new"))
            with new:
                before = keys_file.read_text()
                for text, status in ((before + entry("new"), 200), (before, 401)) * 2:
                    write_keys(keys_file, text)
                    until(lambda: new.post(INFER, json=BODY).status_code == status)  # noqa: B023
                    begun = next(asked)
                    until(lambda: next(asked) > begun + 20)  # noqa: B023
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert statuses == {200}
        write_keys(keys_file, "[[key]]\n")
        assert "keys were not reloaded" in gateway.wait_line("not reloaded")
        assert gateway.client.post(INFER, json=BODY, headers=as_key("a")).is_success


def test_so_many_of_a_key_in_flight() -> None:
    async def run() -> None:
        runner = Doubler("never")
        app = fronts.front(runner)
        key = KeyConfig("a", digest_of(b"k"), concurrent=2)
        found = Keys(None)
        found.path = Path("keys.toml")
        found.take_over(KeysConfig((), (key,)))
        app.access = Access(keys=found)

        def client() -> Client:
            return Client(app, "/v2/models/m/infer", headers={"x-api-key": "k"})

        held = []
        for _ in range(2):
            runner.arrived.clear()
            held.append(asyncio.create_task(client().run()))
            await runner.arrived.wait()
        refused = await client().run()
        assert refused.status == 429
        assert refused.json["code"] == "key_concurrency"
        runner.submitted[0].resolve()
        assert (await held[0]).status == 200
        # One that its client gives up counts no more either.
        held[1].cancel()
        await asyncio.wait([held[1]])
        one = found.table.find(b"k")
        assert one is not None
        assert one.in_flight == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file or directory"),
        ("[[key]]", "key.0: the key name is missing"),
    ],
)
def test_serve_says_what_is_wrong_with_the_file(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "keys.toml"
    if text is not None:
        path.write_text(text)
    done = run_popgate("serve", "-m", tmp_path, "--port", "0", "--keys", path)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "--keys" in done.stderr
    assert "Traceback" not in done.stderr
