"""Models in Python that call other models of the server.

Covers: plugins/python_models/src/popgate_python_models/call_graph.py,
plugins/python_models/src/popgate_python_models/called_request.py,
plugins/python_models/src/popgate_python_models/parent_requests.py,
plugins/python_models/src/popgate_python_worker/calls/call_client.py,
plugins/python_models/src/popgate_python_worker/calls/loop_driver.py,
plugins/python_models/src/popgate_python_worker/calls/pending_call.py,
plugins/python_models/src/popgate_python_worker/calls/server_models.py,
plugins/python_models/src/popgate_python_messages/call_messages.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.python_sources import write
from tests.app.served import ServedGateway, add
from tests.support import until

ROW = [1.0, 2.0, 3.0, 4.0]

CALLER = """
import asyncio
import numpy as np
from popgate import EngineError, InvalidInput, Model

class Caller(Model):
    inputs = {"what": "BYTES[1]", "x": "FP32[-1,4]"}
    outputs = {"y": "FP32[-1,-1]", "said": "BYTES[1]"}

    def load(self, context):
        self.context, self.models = context, context.models

    def __call__(self, what, x):
        name = what[0].decode()
        try:
            return {"y": self.ask(name, x), "said": ["ok"]}
        except (EngineError, KeyError) as error:
            if name.startswith("raise "):
                raise
            said = f"{type(error).__name__}: {error}"
            return {"y": np.zeros((0, 0)), "said": [said]}

    def ask(self, name, x):
        if name == "exit":
            import os
            os._exit(1)
        if name == "lists":
            return self.models["onnx"](input=x.astype(np.float64).tolist())["output"]
        if name == "text":
            return self.models["length/1"](text=["a", b"four"])["n"][None]
        if name == "masked":
            model = self.models["onnx"]
            model(input=np.ma.array(x))
            return model(input=np.ma.masked_less(x, 2))["output"]
        if name == "large":
            return self.models["onnx"](input=x.astype(np.float64) * 1e300)["output"]
        if name == "shape":
            return self.models["onnx"](input=x[0])["output"]
        if name == "part":
            model = self.models["two"]
            assert model.call({"text": ["a"]}, outputs=["m"]).keys() == {"m"}
            return x
        if name == "parameters":
            raw = {"input": x[0]}
            try:
                self.models["onnx"].call(raw, parameters=[{"a": 1}])
            except TypeError as error:
                assert "must be a mapping, got list" in str(error)
            try:
                self.models["onnx"].call(raw, parameters={"a": chr(0xD800)})
            except InvalidInput as error:
                assert "the call cannot be sent: 'utf-8'" in str(error)
            try:
                self.models["onnx"](self=x)
            except InvalidInput as error:
                assert "'self'" in str(error)
            for wrong in (5, None, b"onnx"):
                try:
                    raise AssertionError(self.models[wrong])
                except TypeError as error:
                    assert "must be a string, got" in str(error)
            return self.models["length"](text=["still there"])["n"][None]
        if name.startswith("stream "):
            return self.stream(*name.split()[1:], x)
        name = name.removeprefix("raise ")
        if name in ("die", "hang", "long"):
            return self.models["length"](text=[name])["n"][None]
        return self.models[name](input=x)["output"]

    def stream(self, name, most, x):
        if not int(most):
            responses = self.models[name].stream({"input": x})
            responses.close()
            return x
        found = []
        for each in self.models[name].stream({"input": x}):
            found.append(each["output"])
            if len(found) == int(most):
                break
        return np.concatenate(found)
"""
COUNT = """
class Count:
    inputs = {"input": "FP32[-1,-1]"}
    outputs = {"output": "FP32[-1,-1]"}
    def load(self, context):
        self.log = context.log
    def __call__(self, input):
        try:
            for i in range(3):
                yield {"output": input + i}
            if input[0][0] > 1:
                raise ValueError("at the end")
        finally:
            self.log.info("closed after %d", i)
"""
#: Gives a response, and no second one until its client has left.
ONCE = """
import time

class Once:
    inputs = {"input": "FP32[-1,-1]"}
    outputs = {"output": "FP32[-1,-1]"}
    def load(self, context):
        self.context = context
    def __call__(self, input):
        yield {"output": input}
        self.context.log.info("no second response")
        while not self.context.cancelled:
            time.sleep(0.001)
"""
#: Hands on the responses of another model, with the number of its process.
RELAY = """
import os
import numpy as np
from popgate import EngineError

class Relay:
    inputs = {"input": "FP32[-1,-1]"}
    outputs = {"process": "INT64[1]"}
    def load(self, context):
        self.context = context
    def __call__(self, input):
        try:
            for each in self.context.models["once"].stream({"input": input}):
                yield {"process": np.array([os.getpid()])}
        except EngineError as error:
            self.context.log.info("the relay ended: %s", type(error).__name__)
            raise
"""
LENGTH = """
import os, time
import numpy as np

class Length:
    inputs = {"text": "BYTES[-1]"}
    outputs = {"n": "INT32[-1]"}
    def load(self, context):
        self.context = context
    def __call__(self, text):
        if b"die" in list(text):
            os._exit(1)
        while text[0] == b"hang" and not self.context.cancelled:
            time.sleep(0.001)
        if text[0] == b"hang":
            self.context.log.info("nobody waits")
        return {"n": [len(each) for each in text]}
"""
TWO = """
import asyncio
import numpy as np

class Two:
    inputs = {"text": "BYTES[-1]"}
    outputs = {"n": "INT32[-1]", "m": "INT32[-1]"}
    async def load(self, context):
        self.length = context.models["length"]
        assert (await self.length.call_async(text=["abc"]))["n"][0] == 3
        try:
            context.models["onnx"]
        except KeyError as error:
            context.log.info("refused: %s", error)
    async def __call__(self, text):
        calls = [self.length.call_async(text=[each]) for each in text]
        found = [each["n"][0] for each in await asyncio.gather(*calls)]
        return {"n": found, "m": found}
"""
ECHO = """
class Echo:
    inputs = {"input": "FP32[-1,-1]"}
    outputs = {"output": "FP32[-1,-1]"}
    def load(self, context):
        self.models = context.models
    def __call__(self, input):
        return {"output": self.models["%s"](input=input)["output"]}
"""

PLAIN = """
class Plain:
    inputs = {"input": "FP32[-1,-1]"}
    outputs = {"output": "FP32[-1,-1]"}
    def __call__(self, input):
        return {"output": input}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[ServedGateway]:
    add(root, "onnx")
    write(root, "caller", CALLER)
    write(root, "length", LENGTH)
    write(root, "count", COUNT)
    write(root, "once", ONCE)
    write(root, "relay", RELAY)
    write(root, "two", TWO, 'models = ["length"]\n')
    write(root, "ping", ECHO % "pong")
    write(root, "pong", ECHO % "ping")
    write(root, "a", ECHO % "b", 'models = ["b"]\n')
    write(root, "b", ECHO % "a", 'models = ["a"]\n')
    write(root, "none", ECHO % "nothing", 'models = ["nothing"]\n')
    write(root, "below", PLAIN)
    write(root, "above", ECHO % "below")
    with ServedGateway(root, "--allow-python") as gateway:
        yield gateway.wait_ready()


def ask(gateway: ServedGateway, what: str, x: Any = None, **parameters: Any) -> Any:
    body = {
        "inputs": {"what": [what], "x": [ROW] if x is None else x},
        "parameters": parameters,
    }
    return gateway.client.post("/v1/models/caller/infer", json=body)


def answer(gateway: ServedGateway, what: str, x: Any = None) -> Any:
    response = ask(gateway, what, x)
    assert response.status_code == 200, response.text
    return {o["name"]: o["data"] for o in response.json()["outputs"]}


def count(gateway: ServedGateway, name: str) -> int:
    (stats,) = gateway.client.get(f"/v2/models/{name}/stats").json()["model_stats"]
    return int(stats["inference_stats"]["success"]["count"])


def test_wrong_parameters_fail_one_call(served: ServedGateway) -> None:
    """Later calls of the same process reach their models."""
    for _ in range(2):
        assert answer(served, "parameters")["y"] == [11.0]


def test_a_model_calls_an_onnx_model(served: ServedGateway) -> None:
    before = count(served, "onnx")
    expected = served.infer("onnx", input=[ROW])
    (name,) = expected
    found = answer(served, "onnx")
    assert found == {"y": expected[name], "said": ["ok"]}
    assert answer(served, "lists")["y"] == expected[name]
    assert count(served, "onnx") == before + 3


def test_large_tensors_and_texts_travel_too(served: ServedGateway) -> None:
    rows = np.arange(40_000, dtype=np.float32).reshape(-1, 4) / 8
    expected = served.infer("onnx", input=rows.tolist())
    assert answer(served, "onnx", rows.tolist())["y"] == expected["output"]
    assert answer(served, "text")["y"] == [1.0, 4.0]


def test_coroutines_have_several_calls_under_way(served: ServedGateway) -> None:
    assert served.infer("two", text=["a", "bb", "ccc"])["n"] == [1, 2, 3]
    assert answer(served, "part")["said"] == ["ok"]


def test_several_responses_are_taken_one_after_the_other(served: ServedGateway) -> None:
    before = count(served, "count")
    assert answer(served, "stream count 9")["y"] == [*ROW, *(x + 1 for x in ROW)] + [
        x + 2 for x in ROW
    ]
    assert answer(served, "stream count 2")["y"] == [*ROW, *(x + 1 for x in ROW)]
    served.wait_line("closed after 1")
    assert answer(served, "stream onnx 9")["y"] == answer(served, "onnx")["y"]
    failed = answer(served, "stream count 9", [[2.0, 0, 0, 0]])["said"][0]
    assert failed.startswith("ExecutionFailed: model 'count': ValueError: at the end")
    assert count(served, "count") == before + 1


def test_responses_that_are_never_read_are_cancelled(served: ServedGateway) -> None:
    """Immediately, not at the deadline of the request."""
    begin = 'nv_inference_request_failure{model="count",reason="CANCELED"'

    def cancelled() -> str:
        lines = served.client.get("/metrics").text.splitlines()
        return next(line for line in lines if line.startswith(begin))

    before = cancelled()
    assert answer(served, "stream count 0")["said"] == ["ok"]
    until(lambda: cancelled() != before)


def test_a_client_that_leaves_ends_the_wait_for_a_later_response(
    served: ServedGateway,
) -> None:
    """The process of the calling model goes on."""

    def first_process() -> int:
        body = {"inputs": {"input": [ROW]}}
        events = {"Accept": "text/event-stream"}
        path = "/v1/models/relay/infer"
        before = served.output.count("no second response")
        with served.client.stream("POST", path, json=body, headers=events) as response:
            lines = response.iter_lines()
            data = next(line for line in lines if line.startswith("data: "))
            until(lambda: served.output.count("no second response") > before)
        (output,) = json.loads(data[6:])["outputs"]
        return int(output["data"][0])

    process = first_process()
    served.wait_line("the relay ended: Cancelled")
    assert first_process() == process


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nobody", "Refused: model 'nobody': "),
        ("die", "DeviceLost: model 'length': "),
        ("shape", "InvalidInput: model 'onnx': "),
        ("large", "InvalidInput: model 'onnx': input 'input': 1e+300 is out of range"),
        ("masked", "InvalidInput: input 'input' of a call has masked values"),
    ],
)
def test_what_goes_wrong_has_a_name(
    served: ServedGateway, what: str, said: str
) -> None:
    assert answer(served, what)["said"][0].startswith(said)
    until(lambda: answer(served, "text")["said"] == ["ok"])


def test_what_is_not_caught_becomes_of_the_request(served: ServedGateway) -> None:
    response = ask(served, "raise nobody")
    assert response.status_code == 503
    assert "model 'nobody': " in response.text


def test_deadlines_and_cancellation_are_handed_on(served: ServedGateway) -> None:
    response = ask(served, "hang", timeout=300_000)
    assert response.status_code == 504
    served.wait_line("nobody waits")
    assert answer(served, "onnx")["said"] == ["ok"]


def test_a_model_that_is_unloaded_is_refused_until_it_is_back(
    served: ServedGateway,
) -> None:
    client = served.client
    assert client.post("/v1/models/onnx/unload").status_code == 200
    assert answer(served, "onnx")["said"][0].startswith("Refused: model 'onnx'")
    assert client.post("/v1/models/onnx/load").status_code == 200
    assert answer(served, "onnx")["said"] == ["ok"]


def test_circles_are_refused(served: ServedGateway) -> None:
    index = served.client.post("/v2/repository/index").json()
    reasons = {model["name"]: model.get("reason", "") for model in index}
    assert reasons["a"] == "'a' would run 'b', which runs it"
    assert reasons["b"] == "'b' would run 'a', which runs it"
    assert reasons["none"] == "there is no model 'nothing' in the repository"
    response = served.client.post(
        "/v1/models/ping/infer", json={"inputs": {"input": [ROW]}}
    )
    assert response.status_code == 503
    assert "would call 'p" in response.text
    assert ", which calls it" in response.text


def test_models_that_are_replaced_may_call_the_other_way_round(
    served: ServedGateway, root: Path
) -> None:
    """The calls of a process that has ended close no circle."""
    assert served.infer("above", input=[ROW])["output"] == ROW
    for name, text in ("above", PLAIN), ("below", ECHO % "above"):
        (root / name / "1" / "model.py").write_text(text)
        assert served.client.post(f"/v1/models/{name}/load").status_code == 200
    body = {"inputs": {"input": [ROW]}}
    path = "/v1/models/below/infer"
    until(lambda: served.client.post(path, json=body).status_code == 200)


def test_only_the_models_that_are_named_are_called(served: ServedGateway) -> None:
    served.wait_line("'onnx' is not among its models (length)")


def test_a_process_that_comes_back_calls_again(served: ServedGateway) -> None:
    response = ask(served, "exit")
    assert response.status_code == 503
    until(lambda: ask(served, "onnx").status_code == 200)
    assert answer(served, "onnx")["said"] == ["ok"]
