"""Both clients against a real gateway, over both of their ways.

Covers: plugins/client/src/popgate_client/async_client.py,
    plugins/client/src/popgate_client/shared.py,
    plugins/client/src/popgate_client/web.py.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugins.client.tests.both import WAYS, Driven
from popgate_client import (
    AsyncClient,
    AuthenticationError,
    Client,
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Outputs,
    Tensor,
)
from popgate_client.steps import Options
from popgate_client.web import http_options
from tests.app.served import ServedGateway, add
from tests.engine import models

ROW = np.arange(16, dtype=np.int32)[None]


@pytest.fixture(params=WAYS)
def client(request: pytest.FixtureRequest, triton: ServedGateway) -> Iterator[Driven]:
    with Driven(request.param, triton.url) as driven:
        yield driven


def test_arrays(client: Driven) -> None:
    outputs = client.infer("simple", INPUT0=ROW, INPUT1=ROW)
    assert isinstance(outputs, Outputs)
    np.testing.assert_array_equal(outputs["OUTPUT0"], ROW * 2)
    np.testing.assert_array_equal(outputs["OUTPUT1"], ROW * 0)
    assert outputs["OUTPUT0"].dtype == np.int32
    assert outputs["OUTPUT0"].flags.writeable
    assert outputs["OUTPUT0"].flags.aligned
    assert (outputs.model_name, outputs.model_version) == ("simple", "1")
    assert repr(outputs).startswith("Outputs(simple/1: OUTPUT0: INT32[1, 16]")


def test_lists_scalars_and_other_types(client: Driven) -> None:
    outputs = client.infer("simple", {"INPUT0": list(range(16)), "INPUT1": [[1] * 16]})
    np.testing.assert_array_equal(outputs["OUTPUT0"], ROW + 1)
    swapped = Tensor("INPUT0", "INT32", ROW.astype(">i4"))
    outputs = client.infer("simple", INPUT0=swapped, INPUT1=ROW)
    np.testing.assert_array_equal(outputs["OUTPUT0"], ROW + ROW)
    outputs = client.infer("simple_identity_int64", 7)
    np.testing.assert_array_equal(outputs["OUTPUT0"], [[7]])
    outputs = client.infer("onnx_zero_1_float32", np.arange(6.0).reshape(2, 3).T)
    np.testing.assert_array_equal(outputs["OUTPUT0"], [[0, 3], [1, 4], [2, 5]])
    outputs = client.infer("onnx_zero_1_float16", np.ones((1, 1, 3), np.float16) / 3)
    assert outputs["OUTPUT0"].dtype == np.float16
    assert outputs["OUTPUT0"][0, 0, 0] == np.float16(1 / 3)


def test_texts(client: Driven) -> None:
    outputs = client.infer("simple_identity", [["Grüße", b"a\0", ""]])
    assert outputs["OUTPUT0"].tolist() == [["Grüße".encode(), b"a\0", b""]]
    outputs = client.infer("simple_identity", np.array([["a", "語"]]))
    assert outputs.text("OUTPUT0") == [["a", "語"]]


def test_large_tensors_go_both_ways(client: Driven) -> None:
    large = np.random.default_rng(0).random((8, 800_000), np.float32)
    outputs = client.infer("onnx_zero_1_float32", large)
    np.testing.assert_array_equal(outputs["OUTPUT0"], large)


def test_options_of_a_call(client: Driven) -> None:
    outputs = client.infer(
        "simple",
        INPUT0=ROW,
        INPUT1=ROW,
        outputs={"OUTPUT1": {"classification": 2}},
        request_id="seven",
        parameters={"note": "x"},
        priority=1,
        timeout=30,
        headers={"X-Note": "y"},
        version="1",
    )
    assert list(outputs) == ["OUTPUT1"]
    assert outputs.id == "seven"
    assert outputs["OUTPUT1"].tolist() == [[b"0:0", b"0:1"]]
    outputs = client.infer("simple", INPUT0=ROW, INPUT1=ROW, outputs=["OUTPUT1"])
    assert list(outputs) == ["OUTPUT1"]


@pytest.mark.parametrize("timeout", [np.float32(30), 30, math.inf, 1e300, "30"])
def test_timeouts_of_any_form(client: Driven, timeout: Any) -> None:
    outputs = client.infer("simple", INPUT0=ROW, INPUT1=ROW, timeout=timeout, version=1)
    assert outputs["OUTPUT1"].tolist() == [[0] * 16]


def test_timeouts_that_are_none(client: Driven) -> None:
    for wrong in (math.nan, "soon", [1]):
        with pytest.raises(InvalidRequest, match="timeout must be a number, got"):
            client.infer("simple", INPUT0=ROW, INPUT1=ROW, timeout=wrong)
    with pytest.raises(DeadlineExceeded):
        client.infer("simple", INPUT0=ROW, INPUT1=ROW, timeout=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"outputs": "OUTPUT1"},
        {"outputs": 5},
        {"outputs": (name for name in ["OUTPUT1"])},
        {"outputs": {"OUTPUT1": None}},
        {"parameters": [("a", 1)]},
        {"headers": "a: b"},
    ],
)
def test_options_of_a_call_of_another_type(
    triton: ServedGateway, wrong: dict[str, Any]
) -> None:
    with Client(triton.url) as client:
        said = f"{next(iter(wrong))}.* be a |output 'OUTPUT1' must"
        with pytest.raises(InvalidRequest, match=said):
            client.infer("simple", INPUT0=ROW, INPUT1=ROW, **wrong)


def test_mistakes_are_typed(client: Driven) -> None:
    with pytest.raises(NotFound, match="unknown model: 'none'") as unknown:
        client.infer("none", x=[1.0])
    assert unknown.value.status in (400, 404)  # as Triton has it in this profile
    with pytest.raises(InvalidRequest, match="no input 'z'; it takes INPUT0"):
        client.infer("simple", z=[1])
    with pytest.raises(InvalidRequest, match="give values by name: the inputs of"):
        client.infer("simple", [1])
    with pytest.raises(InvalidRequest, match="do not fit INT32"):
        client.infer("simple", INPUT0=[0.5] * 16, INPUT1=ROW)
    with pytest.raises(InvalidRequest, match="expected INT32, got values of"):
        client.infer("simple", INPUT0=["a"] * 16, INPUT1=ROW)
    with pytest.raises(InvalidRequest) as short:
        client.infer("simple", INPUT0=ROW[:, :3], INPUT1=ROW, request_id="r1")
    assert short.value.status == 400
    assert "unexpected shape for input 'INPUT0'" in str(short.value)
    assert short.value.request_id
    with pytest.raises(InvalidRequest, match="header"):
        client.infer("simple", INPUT0=ROW, INPUT1=ROW, headers={"a": "b\r\nc: d"})
    with pytest.raises(InvalidRequest, match="expected strings, got int"):
        client.classify("m", 5)
    with pytest.raises(InvalidRequest, match="parameters must be a mapping"):
        client.load("m", parameters=["a"])
    with pytest.raises(InvalidRequest, match="a name must be a string, got 5"):
        client.metadata(5)
    with pytest.raises(InvalidRequest, match="line break"):
        client.ask("GET", "/v2 HTTP/1.1\r\na: b")


def test_metadata_and_health(client: Driven) -> None:
    assert client.live()
    assert client.ready()
    assert client.ready("simple")
    assert client.ready("simple", version="1")
    assert not client.ready("none")
    client.wait_ready("simple", timeout=5)
    assert client.metadata()["name"] == "triton"
    assert client.metadata("simple")["inputs"][0]["name"] == "INPUT0"
    assert client.config("simple")["max_batch_size"] > 0
    assert "simple" in [model["name"] for model in client.models()]
    assert client.statistics("simple")["model_stats"][0]["name"] == "simple"
    assert client.statistics()["model_stats"]


def test_generation(client: Driven) -> None:
    done = client.generate("mock_llm", PROMPT="hello", STREAM=False)
    assert done["TEXT"] == "hello"
    events = client.generate_stream("mock_llm", PROMPT="a b", STREAM=True)
    assert [event["TEXT"] for event in events] == ["a b"]
    many = client.generate_stream(
        "mock_llm", PROMPT="a b", STREAM=True, REPETITION=np.int64(3)
    )
    assert len(many) == 3


def test_streams(client: Driven) -> None:
    responses = client.stream(
        "mock_llm", PROMPT=["hello"], STREAM=[True], parameters={"REPETITION": 2}
    )
    assert [r.text("TEXT") for r in responses] == [[["hello"]]] * 2
    (only,) = client.stream("simple", INPUT0=ROW, INPUT1=ROW, outputs=["OUTPUT0"])
    np.testing.assert_array_equal(only["OUTPUT0"], ROW * 2)
    with pytest.raises(NotFound):
        client.stream("none", x=[1])
    with pytest.raises(ClientError):
        client.generate_stream("none", x=1)


def test_a_sequence(triton: ServedGateway) -> None:
    with Client(triton.url) as client:
        with client.sequence("simple_sequence") as run:
            totals = [run(value)["OUTPUT"].item() for value in (5, 1)]
            last = run(INPUT=2, end=True)["OUTPUT"].item()
        assert run.ended
        assert repr(run).endswith("of simple_sequence, ended)")
        with pytest.raises(ClientError, match="has ended"):
            run(1)
        with client["simple_sequence"].sequence("text-id") as other:
            fresh = other(5)["OUTPUT"].item()
        assert other.ended  # by a request of its own
        again = client.sequence("simple_sequence", sequence_id=other.id)
        again.begun = True
        with pytest.raises(InvalidRequest, match="START flag"):
            again(1)
    # This model adds one to the first value of a sequence.
    assert (totals, last, fresh) == ([6, 1], 2, 6)


def test_a_sequence_in_an_event_loop(triton: ServedGateway) -> None:
    async def ask() -> list[Any]:
        client = AsyncClient(triton.url)
        async with client, client.sequence("simple_sequence") as run:
            return [(await run(value))["OUTPUT"].item() for value in (5, 1)]

    assert asyncio.run(ask()) == [6, 1]


def test_models_as_functions(triton: ServedGateway) -> None:
    with Client(triton.url) as client:
        model = client["simple_identity_int64"]
        assert model([[1, 2]])["OUTPUT0"].tolist() == [[1, 2]]
        assert model.ready()
        assert model.metadata()["name"] == model.name
        assert client.model("simple", "1").ready()
        (response,) = model.stream([[3]])
        assert response["OUTPUT0"].tolist() == [[3]]
        assert repr(model) == f"Model(simple_identity_int64 of Client({triton.url}))"
    assert repr(client) == f"Client({triton.url}, closed)"
    with pytest.raises(ClientError, match="closed"):
        client.infer("simple", INPUT0=ROW, INPUT1=ROW)
    with pytest.raises(ClientError, match="closed"):
        list(client.generate_stream("mock_llm", PROMPT="a"))


@pytest.mark.parametrize("encoding", ["json", "binary", "msgpack", "npy"])
def test_encodings(triton: ServedGateway, encoding: str) -> None:
    values = np.array([[0.1, np.nan, np.inf]], np.float32)
    with Client(triton.url, encoding=encoding) as client:
        outputs = client.infer("onnx_zero_1_float32", values)
        np.testing.assert_array_equal(outputs["OUTPUT0"], values)
        assert outputs["OUTPUT0"].dtype == np.float32
        texts = client.infer("simple_identity", [["Grüße", ""]])
        assert texts.text("OUTPUT0") == [["Grüße", ""]]


def test_many_calls_from_many_threads_share_few_connections(
    triton: ServedGateway,
) -> None:
    wrong = []
    with Client(triton.url, max_connections=3) as client:

        def ask(number: int) -> None:
            for step in range(50):
                given = [[number, step]]
                got = client.infer("simple_identity_int64", given)["OUTPUT0"]
                if got.tolist() != given:
                    wrong.append((given, got))

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client._pool is not None
        assert client._pool._open <= 3
    assert wrong == []


def test_calls_side_by_side_in_an_event_loop(triton: ServedGateway) -> None:
    async def ask() -> list[Any]:
        async with AsyncClient(triton.url, max_connections=4) as client:
            calls = [client.infer("simple_identity_int64", n) for n in range(40)]
            return [r["OUTPUT0"].item() for r in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == list(range(40))


def test_a_cancelled_call_frees_its_connection(triton: ServedGateway) -> None:
    async def ask() -> Any:
        async with AsyncClient(triton.url, max_connections=1) as client:
            call = asyncio.create_task(client.infer("simple_identity_int64", 1))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return (await client.infer("simple_identity_int64", 2))["OUTPUT0"].item()

    assert asyncio.run(ask()) == 2


def test_a_forked_process_has_connections_of_its_own(triton: ServedGateway) -> None:
    with Client(triton.url) as client:
        client.infer("simple_identity_int64", 1)
        assert client._pool is not None
        mine = client._pool._idle[0]
        child = os.fork()
        if child == 0:
            try:
                got = client.infer("simple_identity_int64", 2)["OUTPUT0"].item()
                fresh = client._pool._idle[0] is not mine
                os._exit(0 if got == 2 and fresh else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.infer("simple_identity_int64", 3)["OUTPUT0"].item() == 3
        assert client._pool._idle[0] is mine


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    add(root, "affine")
    options = ["--api-key", "secret", "--base-path", "/some/base"]
    options += ["--restricted-api", "inference:x-pass=open"]
    with ServedGateway(root, *options) as served:
        yield served.wait_ready()


@pytest.mark.parametrize("way", WAYS)
def test_keys_headers_and_a_base_path(guarded: ServedGateway, way: str) -> None:
    url = f"{guarded.url}/some/base"
    with Driven(way, url, api_key="secret", headers={"X-Pass": "open"}) as client:
        assert client.infer("affine", [0, 1, 2, 3])["output"].tolist() == [[1, 3, 5, 7]]
        client.unload("affine")
        with pytest.raises(ClientError):
            client.infer("affine", [0, 1, 2, 3], timeout=0.3)
        client.load("affine")
        assert client.ready("affine")
        assert client.infer("affine", [0, 1, 2, 3])["output"].shape == (1, 4)
        with pytest.raises(ClientError):
            client.load("none", config={"max_batch_size": 3})
    with Driven(way, guarded.url, api_key="wrong") as client:
        with pytest.raises(AuthenticationError) as refused:
            client.unload("affine")
        assert refused.value.code == "api_key_wrong"
        with pytest.raises(AuthenticationError) as closed:
            client.infer("affine", [0, 1, 2, 3])
        assert closed.value.status == 403


@pytest.mark.parametrize("way", ["blocking", "asyncio"])
def test_a_unix_socket(tmp_path: Path, way: str) -> None:
    root = tmp_path / "models"
    add(root, "text", models.text)
    place = tmp_path / "s"
    with ServedGateway(root, f"--uds={place}") as served:
        served.wait_ready()
        with Driven(way, f"unix:{place}") as client:
            assert client.infer("text", ["a"]).text("output") == ["a!"]
            assert client.stream("text", ["a"])[0].text("output") == ["a!"]


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://x:port", "http://", "http://x/a b", "http://x?a", "x#a", 8000],
)
def test_addresses_that_are_none(url: Any) -> None:
    with pytest.raises(InvalidRequest):
        Client(url)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("connect_timeout", math.nan),
        ("connect_timeout", "soon"),
        ("retries", "1"),
        ("retries", -1),
        ("max_connections", None),
        ("max_connections", math.nan),
        ("max_answer", "1"),
        ("max_answer", -1),
        ("api_key", b"key"),
        ("headers", [("a", "b")]),
        ("headers", {"a": b"b"}),
        ("headers", {5: "b"}),
    ],
)
def test_options_of_another_type(option: str, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{option.rstrip('s')}.* must be "):
        Client("http://h", **{option: wrong})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", [None, math.inf, 10**400])
def test_no_limit_for_connections(
    triton: ServedGateway, way: str, limit: float | None
) -> None:
    options: Any = {"timeout": limit, "connect_timeout": limit}
    with Driven(way, triton.url, **options) as client:
        assert client.live()
        client.wait_ready("simple", timeout=limit)


def test_importing_it_needs_little() -> None:
    import subprocess
    import sys

    code = (
        "import popgate_client, sys;"
        "print([m for m in ('engine', 'onnxruntime', 'httpx', 'onnx', 'app')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("secure", [False, True])
def test_authorities_are_loaded_for_tls_alone(secure: bool) -> None:
    scheme = "https" if secure else "http"
    options = Options(
        f"{scheme}://127.0.0.1:1", 1.0, 1.0, 0, False, 1, 1, None, ()
    )  # fmt: skip
    arguments, _ = http_options(options, {"verify": True})
    assert bool(arguments["verify"].get_ca_certs()) is secure
