"""What goes wrong on the way, by a server that does it: each is a named outcome.

Covers: plugins/client/src/popgate_client/core.py,
    plugins/client/src/popgate_client/known_model.py,
    plugins/client/src/popgate_client/steps.py,
    plugins/client/src/popgate_client/refusals.py,
    plugins/client/src/popgate_client/connections.py,
    plugins/client/src/popgate_client/async_connections.py,
    plugins/client/src/popgate_client/errors.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from plugins.client.tests.both import WAYS, Driven
from plugins.client.tests.peer import ANSWER, Peer, http, says, waits
from popgate_client import (
    Client,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    ServerError,
    Unavailable,
)
from popgate_client.core import FIRST_PAUSE, Core
from popgate_client.steps import CallOptions, Options, Pause, RoundTrip
from tests.support import WAIT, until

X = np.array([[1, 2]], np.float32)
GOOD = says(http(ANSWER))


def refusal(status: int, code: str, **headers: str) -> Any:
    document = {"error": f"it is {code}", "code": code}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return says(http(document, status, named))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(peer: Peer, way: str, /, **options: Any) -> Any:
    with Driven(way, peer.url, **options) as client:
        return client.infer("m", X)["y"].tolist()


def test_a_server_that_answers_in_json(way: str) -> None:
    with Peer(GOOD) as peer:
        assert ask(peer, way) == [[3.0, 5.0]]
        (_, head, body) = peer.inferences[0]
    assert b"inference-header-content-length" in head.lower()
    assert body.endswith(X.tobytes())


def test_a_server_without_the_binary_extension(way: str) -> None:
    with Peer(GOOD, extensions=[]) as peer:
        assert ask(peer, way) == [[3.0, 5.0]]
        document = json.loads(peer.inferences[0][2])
    assert document["inputs"][0]["data"] == [1.0, 2.0]
    assert document["parameters"] == {"timeout": 60_000_000}


def test_chunked_answers(way: str) -> None:
    body = json.dumps(ANSWER).encode()
    pieces = b"".join(
        b"%x;note=1\r\n%s\r\n" % (len(piece), piece)
        for piece in (body[:1], body[1:40], body[40:])
    )
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Peer(says(head + pieces + b"0\r\nTrailer: x\r\n\r\n")) as peer:
        assert ask(peer, way) == [[3.0, 5.0]]


def test_answers_that_end_with_the_connection(way: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    with Peer(says(head + json.dumps(ANSWER).encode(), keep=False)) as peer:
        assert ask(peer, way) == [[3.0, 5.0]]


def test_an_informational_answer_first(way: str) -> None:
    with Peer(says(b"HTTP/1.1 100 Continue\r\n\r\n" + http(ANSWER))) as peer:
        assert ask(peer, way) == [[3.0, 5.0]]


def test_more_inputs_than_a_system_call_takes() -> None:
    many = {f"x{n}": np.array([n], np.int32) for n in range(1100)}
    with Peer(GOOD) as peer, Client(peer.url, encoding="binary") as client:
        peer.metadata = {"inputs": [], "outputs": []}
        assert client.infer("m", many)["y"].tolist() == [[3.0, 5.0]]
        tensors = peer.inferences[0][2][-4 * len(many) :]
    assert np.frombuffer(tensors, np.int32).tolist() == list(range(len(many)))


def test_nobody_there(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Driven(way, f"http://127.0.0.1:{port}", retries=1) as client:
        with pytest.raises(ConnectionFailed, match="no connection to") as failed:
            client.infer("m", X)
        assert not failed.value.sent
        assert not client.live()
        assert not client.ready()
        with pytest.raises(DeadlineExceeded, match="not ready after"):
            client.wait_ready(timeout=0.2)


def test_a_connection_that_ends_without_an_answer(way: str) -> None:
    with Peer(says(b"", keep=False)) as peer:
        with pytest.raises(ConnectionFailed) as failed:
            ask(peer, way)
        assert failed.value.sent
        assert len(peer.inferences) == 1  # it may have run: not again


def test_an_answer_that_is_cut_off(way: str) -> None:
    with Peer(says(http(ANSWER)[:-10], keep=False)) as peer:
        with pytest.raises(ConnectionFailed) as failed:
            ask(peer, way)
        assert failed.value.sent
        assert len(peer.inferences) == 1


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, b"Basic " + b64encode("jo:a@ü".encode())),
        ({"api_key": "k"}, b"Bearer k"),
        ({"headers": {"authorization": "Other"}}, b"Other"),
    ],
)
def test_the_user_and_password_of_the_url(
    way: str, options: dict[str, Any], sent: bytes
) -> None:
    with Peer(says(http(ANSWER))) as peer:
        url = peer.url.replace("//", "//jo:a%40%C3%BC@")
        with Driven(way, url, **options) as client:
            assert client.infer("m", [1, 2])["y"].tolist() == [[3, 5]]
            assert "a%40" not in repr(client.client)
    for _, head, _ in peer.requests:
        lines = [x.partition(b": ") for x in head.split(b"\r\n")]
        assert [v for k, _, v in lines if k.lower() == b"authorization"] == [sent]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 what\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        http("not a JSON object"),
        http({"outputs": [{"name": "y"}]}),
        http({**ANSWER, "outputs": [{**ANSWER["outputs"][0], "shape": [7]}]}),  # type: ignore[dict-item]
        http(ANSWER, headers={"Inference-Header-Content-Length": "3"}),
        http(ANSWER).replace(b"FP32", b"FP99"),
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno",
        *(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
            b"Inference-Header-Content-Length: %s\r\n\r\n0\r\n\r\n" % size
            for size in (b"1" * 5000, b"\xb2")
        ),
    ],
)
def test_answers_that_are_none(way: str, answer: bytes) -> None:
    with Peer(says(answer, keep=False)) as peer:
        with pytest.raises(ServerError):
            ask(peer, way)
        assert len(peer.inferences) == 1


def test_answers_beyond_the_limit(way: str) -> None:
    with Peer(GOOD) as peer, Driven(way, peer.url, max_answer=100) as client:
        with pytest.raises(ServerError, match=r"max_answer .100."):
            client.infer("m", x=X)
        assert len(peer.inferences) == 1


def test_a_deadline_is_kept_here_and_told_there(way: str) -> None:
    with Peer(GOOD) as peer, Driven(way, peer.url) as client:
        client.infer("m", X)
        peer.replies[:] = [waits(peer.released)]
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded) as late:
            client.infer("m", X, timeout=0.25)
        assert time.monotonic() - started >= 0.25
        assert late.value.sent
        assert isinstance(late.value, TimeoutError)
        document = peer.inferences[-1][2].partition(X.tobytes())[0]
        assert json.loads(document)["parameters"]["timeout"] == 250_000
        assert len(peer.inferences) == 2


def test_the_deadline_covers_the_questions_of_the_first_call(way: str) -> None:
    core = Core(Options("http://h"))
    options = CallOptions(timeout=0.25)
    for steps in (
        core.infer("m", "", X, options),
        core.events("m", "", X, options),
        core.wait_until("/v2/health/ready", 0.25, "m"),
    ):
        ask = next(steps)
        assert isinstance(ask, RoundTrip)
        assert ask.deadline <= time.monotonic() + 0.25
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Driven(way, url, timeout=WAIT) as client:
            with pytest.raises(DeadlineExceeded):
                client.infer("m", X, timeout=0.1)
            with pytest.raises(DeadlineExceeded, match="not ready after"):
                client.wait_ready("m", timeout=0.1)


def test_a_slow_check_is_no_end_of_the_wait() -> None:
    core = Core(Options("http://h", timeout=0.1))
    steps = core.wait_until("/v2/health/ready", WAIT, "m")
    next(steps)
    assert isinstance(steps.throw(DeadlineExceeded("late")), Pause)
    assert isinstance(next(steps), RoundTrip)


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_are_tried_again(way: str, status: int) -> None:
    replies = [refusal(status, "queue_full", Retry_After_Ms="1")] * 2
    with Peer(*replies, GOOD) as peer:
        assert ask(peer, way) == [[3.0, 5.0]]
        assert len(peer.inferences) == 3
        assert peer.connections == 1  # one connection for all of it


def test_retry_after_is_honoured(way: str) -> None:
    with Peer(refusal(429, "queue_full", Retry_After="1"), GOOD) as peer:
        started = time.monotonic()
        ask(peer, way)
        assert time.monotonic() - started >= 1


def test_pauses_grow_although_the_server_names_short_ones(way: str) -> None:
    """Clients that compete for the room of a full server do not run out of attempts."""
    refused = refusal(429, "queue_full", Retry_After_Ms="1")
    with Peer(*[refused] * 4, GOOD) as peer:
        started = time.monotonic()
        ask(peer, way, retries=4)
        assert time.monotonic() - started >= FIRST_PAUSE / 2 * (1 + 2 + 4)
        assert len(peer.inferences) == 5


def test_no_attempt_that_would_be_too_late(way: str) -> None:
    with Peer(refusal(429, "queue_full", Retry_After="60")) as peer:
        with pytest.raises(Unavailable) as full:
            ask(peer, way, timeout=5)
        assert full.value.retry_after == 60
        assert full.value.code == "queue_full"
        assert len(peer.inferences) == 1


def test_a_pause_without_end_is_none(way: str) -> None:
    with Peer(refusal(429, "queue_full", Retry_After="1e300")) as peer:
        with pytest.raises(Unavailable):
            ask(peer, way, timeout=None)
        assert len(peer.inferences) == 1


def test_attempts_end(way: str) -> None:
    with Peer(refusal(503, "model_not_ready", Retry_After_Ms="1")) as peer:
        with pytest.raises(Unavailable):
            ask(peer, way, retries=2)
        assert len(peer.inferences) == 3


def test_a_sequence_is_never_sent_twice(way: str) -> None:
    with Peer(refusal(503, "device_lost", Retry_After_Ms="1")) as peer:
        with Driven(way, peer.url) as client:
            run = client.client.sequence("m")
            with pytest.raises(Unavailable):
                client.done(run(X))
            assert len(peer.inferences) == 1
            assert not run.begun
            peer.replies[:] = [refusal(429, "queue_full", Retry_After_Ms="1"), GOOD]
            client.done(run(X))  # 429: it was not taken
            assert run.begun
            peer.replies[:] = [says(b"", keep=False)]
            with pytest.raises(ConnectionFailed):
                client.done(run(X))
        assert len(peer.inferences) == 4


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "bad", InvalidRequest),
        (400, "Request for unknown model: 'm' is not found", NotFound),
        (413, "large", InvalidRequest),
        (500, "broken", ServerError),
        (501, "missing", ServerError),
        (504, "late", DeadlineExceeded),
    ],
)
def test_errors_by_who_must_act(
    way: str, status: int, text: str, kind: type[ClientError]
) -> None:
    answer = http({"error": text, "code": "c"}, status, {"X-Request-Id": "r7"})
    with Peer(says(answer)) as peer:
        with pytest.raises(kind, match=text) as failed:
            ask(peer, way)
        assert (failed.value.status, failed.value.code) == (status, "c")
        assert failed.value.request_id == "r7"
        assert str(failed.value).endswith(f"(status {status}, request r7)")
        assert len(peer.inferences) == 1


def test_a_redirect_names_its_target(way: str) -> None:
    moved = b"HTTP/1.1 301 Moved\r\nLocation: https://h/\r\nContent-Length: 1\r\n\r\n<"
    to = "the server redirects to https://h/"
    with Peer(says(moved)) as peer, pytest.raises(ServerError, match=to):
        ask(peer, way)


@pytest.mark.parametrize("host", ["a..b", ".h", "a" * 64, "h" * 64 + ".de"])
def test_hosts_whose_names_are_not_valid(host: str) -> None:
    with pytest.raises(InvalidRequest, match="the host's name is not valid"):
        Client(f"http://{host}:1")
    assert Client("http://müller.de:1").address == ("xn--mller-kva.de", 1)


def test_headers_of_latin_1(way: str) -> None:
    with Peer(GOOD) as peer:
        ask(peer, way, headers={"X-Name": "ß"})
        assert b": \xdf\r\n" in peer.inferences[0][1]
        with pytest.raises(InvalidRequest, match="Authorization has a line") as wrong:
            ask(peer, way, api_key="secret\n")
        assert "secret" not in str(wrong.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # httpx's
@pytest.mark.parametrize(
    "options", [{"verify": "/none.pem"}, {"verify": False, "cert": "/none.pem"}]
)
def test_files_of_certificates_that_are_missing(options: dict[str, Any]) -> None:
    with (
        Client("https://127.0.0.1:1", **options) as client,
        pytest.raises(ClientError, match=r"/none\.pem.*(No such file|Could not find)"),
    ):
        client.live()


def test_an_error_that_is_not_json(way: str) -> None:
    page = b"HTTP/1.1 502 Bad\r\nContent-Length: 11\r\n\r\n<h1>no</h1>"
    with Peer(says(page)) as peer, pytest.raises(Unavailable, match="<h1>no</h1>"):
        ask(peer, way, retries=0)


LOST = [
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno",
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno",
]


@pytest.mark.parametrize("lost", [*map(says, LOST), says(b"", keep=False)])
def test_a_server_that_is_lost_on_the_way(way: str, lost: Any) -> None:
    """What may have run is sent again where its sender says that this does no harm."""
    with Peer(lost) as peer:
        with pytest.raises((Unavailable, ServerError)):
            ask(peer, way)
        assert len(peer.inferences) == 1
        peer.replies[:] = [lost, lost, GOOD]
        assert ask(peer, way, idempotent=True) == [[3.0, 5.0]]
        assert len(peer.inferences) == 4
        peer.replies[:] = [lost]
        with Driven(way, peer.url, idempotent=True) as client:
            run = client.client.sequence("m", close=False)
            with pytest.raises((Unavailable, ServerError)):
                client.done(run(X))
        assert len(peer.inferences) == 5


def test_an_error_of_the_server_itself_is_no_loss(way: str) -> None:
    answer = says(http({"error": "broken", "code": "internal"}, 500))
    with Peer(answer) as peer, pytest.raises(ServerError, match="broken"):
        ask(peer, way, idempotent=True)
    assert len(peer.inferences) == 1


@pytest.mark.parametrize("own", ["blocking", "asyncio"])
def test_an_idle_connection_that_was_closed_is_replaced(own: str) -> None:
    closing = says(http(ANSWER), keep=False)
    with Peer(closing) as peer, Driven(own, peer.url) as client:
        for number in range(1, 6):
            client.infer("m", X)
            assert peer.connections == number
            idle = client.client._pool._idle
            if own == "asyncio":
                client.done(_until_broken(idle[-1]))
            else:
                until(idle[-1].is_stale)
        assert len(peer.inferences) == 5


async def _until_broken(connection: Any) -> None:
    while not connection.broken:  # noqa: ASYNC110 - a flag, not an event
        await asyncio.sleep(0.001)


def test_streams_that_end_in_the_middle(way: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    event = b"data: " + json.dumps(ANSWER).encode()
    with Peer(says(head + event + b"\n\n" + event, keep=False)) as peer:
        with Driven(way, peer.url) as client, pytest.raises(ServerError, match="event"):
            client.stream("m", X)
        peer.replies[:] = [
            says(
                head + event + b'\n\ndata: {"error": "no", "code": "timed_out"}\n\n',
                keep=False,
            )
        ]
        with Driven(way, peer.url) as client, pytest.raises(DeadlineExceeded):
            client.stream("m", X)
        peer.replies[:] = [GOOD]
        with (
            Driven(way, peer.url) as client,
            pytest.raises(ServerError, match="stream"),
        ):
            client.stream("m", X)


def test_calls_wait_for_a_connection_until_their_deadline() -> None:
    with Peer(GOOD) as peer, Client(peer.url, max_connections=1) as client:
        client.infer("m", X)
        assert client._pool is not None
        with client._pool._changed:
            held = client._pool._idle.pop()
        with pytest.raises(DeadlineExceeded, match="no free connection") as late:
            client.infer("m", X, timeout=0.1)
        assert not late.value.sent
        client._pool._give_back(held, keep=True)
        assert client.infer("m", X)["y"].tolist() == [[3.0, 5.0]]


def test_a_model_that_has_changed_is_looked_at_again(way: str) -> None:
    with Peer(GOOD) as peer, Driven(way, peer.url) as client:
        client.infer("m", X)
        before = len(peer.requests)
        client.infer("m", X)
        assert len(peer.requests) == before + 1
        peer.replies[:] = [refusal(400, "invalid_input"), GOOD]
        with pytest.raises(InvalidRequest):
            client.infer("m", X)
        client.infer("m", X)
        assert peer.requests[-2][0].startswith("GET /v2/models/m ")
