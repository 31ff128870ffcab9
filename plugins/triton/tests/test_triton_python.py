"""Files for Triton's Python backend, as its documentation writes them, unchanged."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from google.protobuf import text_format

from engine import ExecutionFailed
from popgate_python_interface import Context
from popgate_triton.reading import document_of
from popgate_triton.schema import config_class
from tests.app.served import ServedGateway
from tests.support import WAIT, until
from triton_python_backend_utils import adapter
from triton_python_backend_utils.adapter import MOST_WAITING, adapt
from triton_python_backend_utils.responses import (
    InferenceResponse,
    TritonError,
    TritonModelException,
)

ADD_SUB = '''
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Your Python model must use the same class name."""

    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        output0_config = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
        output1_config = pb_utils.get_output_config_by_name(model_config, "OUTPUT1")
        self.output0_dtype = pb_utils.triton_string_to_numpy(
            output0_config["data_type"]
        )
        self.output1_dtype = pb_utils.triton_string_to_numpy(
            output1_config["data_type"]
        )
        pb_utils.Logger.log_info("version " + args["model_version"])
        pb_utils.Logger.log_info(model_config["parameters"]["hello"]["string_value"])

    def execute(self, requests):
        output0_dtype = self.output0_dtype
        output1_dtype = self.output1_dtype
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            if in_0.as_numpy()[0] == 99:
                error = pb_utils.TritonError("An error occurred")
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            out_0, out_1 = (
                in_0.as_numpy() + in_1.as_numpy(),
                in_0.as_numpy() - in_1.as_numpy(),
            )
            out_tensor_0 = pb_utils.Tensor("OUTPUT0", out_0.astype(output0_dtype))
            out_tensor_1 = pb_utils.Tensor("OUTPUT1", out_1.astype(output1_dtype))
            responses.append(
                pb_utils.InferenceResponse(output_tensors=[out_tensor_0, out_tensor_1])
            )
        return responses

    def finalize(self):
        print("Cleaning up...")
'''
ADD_SUB_CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
        { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
         { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "hello" value { string_value: "said hello" } }
instance_group [{ kind: KIND_CPU }]
"""
BATCHED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            total = np.repeat(rows.sum(), len(rows))  # of this request alone
            tensor = pb_utils.Tensor("OUT", total[:, None].astype(np.int32))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""
BATCHED_CONFIG = """
name: "batched"
backend: "python"
max_batch_size: 16
dynamic_batching { max_queue_delay_microseconds: 50000 }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
REPEAT = """
import json
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        using_decoupled = pb_utils.using_decoupled_model_transaction_policy(
            model_config
        )
        if not using_decoupled:
            raise pb_utils.TritonModelException("must be decoupled")
        self.inflight_thread_count = 0
        self.inflight_thread_count_lck = threading.Lock()

    def execute(self, requests):
        for request in requests:
            thread = threading.Thread(
                target=self.response_thread,
                args=(
                    request.get_response_sender(),
                    pb_utils.get_input_tensor_by_name(request, "IN").as_numpy(),
                ),
            )
            thread.daemon = True
            with self.inflight_thread_count_lck:
                self.inflight_thread_count += 1
            thread.start()
        return None

    def response_thread(self, response_sender, in_input):
        for idx in range(in_input[0]):
            out_output = pb_utils.Tensor("OUT", np.array([idx], np.int32))
            response = pb_utils.InferenceResponse(output_tensors=[out_output])
            response_sender.send(response)
        response_sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.inflight_thread_count_lck:
            self.inflight_thread_count -= 1

    def finalize(self):
        inflight_threads = True
        while inflight_threads:
            with self.inflight_thread_count_lck:
                inflight_threads = self.inflight_thread_count != 0
            if inflight_threads:
                time.sleep(0.1)
"""
#: Waits until its client has left, or answers with the number of its process.
LEFT = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]
        if value == 2:
            while not request.is_cancelled():
                time.sleep(0.001)
            pb_utils.Logger.log_info("the client has left")
        tensor = pb_utils.Tensor("OUT", np.array([os.getpid()], np.int32))
        sender = request.get_response_sender()
        sender.send(
            pb_utils.InferenceResponse([tensor]),
            pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )
"""
SQUARE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.add_input(
            {"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}
        )
        auto_complete_model_config.add_output(
            {"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}
        )
        auto_complete_model_config.set_max_batch_size(0)
        auto_complete_model_config.set_model_transaction_policy(dict(decoupled=True))
        return auto_complete_model_config

    async def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for _ in range(value[0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
BLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            name = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME")
            words = name.as_numpy()[0].decode().split()
            if words[0] == "load":
                pb_utils.load_model(model_name=words[1])
            if words[0] == "ready?":
                found = pb_utils.is_model_ready(*words[1:])
                assert found == pb_utils.is_model_ready(model_name=words[1],
                    model_version=words[2] if words[2:] else "")
                raise pb_utils.TritonModelException(f"{words[1]} is {found}")
            infer_request = pb_utils.InferenceRequest(
                model_name=name.as_numpy()[0].decode(),
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=[in_0, in_1],
            )
            infer_response = infer_request.exec()
            if infer_response.has_error():
                raise pb_utils.TritonModelException(infer_response.error().message())
            inference_response = pb_utils.InferenceResponse(
                output_tensors=infer_response.output_tensors()
            )
            responses.append(inference_response)
        return responses
"""
BLS_CONFIG = """
backend: "python"
input [ { name: "MODEL_NAME" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
        { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
         { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
BLS_ASYNC = """
import asyncio
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            awaits = []
            for model_name in ["add_sub", "auto"]:
                infer_request = pb_utils.InferenceRequest(
                    model_name=model_name,
                    requested_output_names=["OUTPUT0", "OUTPUT1"],
                    inputs=[in_0, in_1],
                )
                awaits.append(infer_request.async_exec())
            first, second = await asyncio.gather(*awaits)
            for each in (first, second):
                if each.has_error():
                    raise pb_utils.TritonModelException(each.error().message())
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.get_output_tensor_by_name(first, "OUTPUT0"),
                        pb_utils.get_output_tensor_by_name(second, "OUTPUT1"),
                    ]
                )
            )
        return responses
"""
AUTO = """
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        inputs = [
            {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]},
            {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4]},
        ]
        outputs = [
            {"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]},
            {"name": "OUTPUT1", "data_type": "TYPE_FP32", "dims": [4]},
        ]
        config = auto_complete_model_config.as_dict()
        input_names = [each["name"] for each in config["input"]]
        output_names = [each["name"] for each in config["output"]]
        for input in inputs:
            if input["name"] not in input_names:
                auto_complete_model_config.add_input(input)
        for output in outputs:
            if output["name"] not in output_names:
                auto_complete_model_config.add_output(output)
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            sender = request.get_response_sender()
            tensors = [
                pb_utils.Tensor("OUTPUT0", in_0 + in_1),
                pb_utils.Tensor("OUTPUT1", in_0 - in_1),
            ]
            sender.send(
                pb_utils.InferenceResponse(tensors),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
        return None
"""
STRINGS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = pb_utils.get_output_config_by_name(
            json.loads(args["model_config"]), "OUTPUT0"
        )
        self.output_dtype = pb_utils.triton_string_to_numpy(config["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            text = [each.decode("utf-8").upper() for each in in_0]
            out = np.array(text).astype(self.output_dtype)
            tensor = pb_utils.Tensor("OUTPUT0", out)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""
STRINGS_CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
REPEAT_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
STATEFUL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            get = lambda name: pb_utils.get_input_tensor_by_name(request, name)
            corrid = int(get("CORRID").as_numpy().ravel()[0])
            if get("START").as_numpy().ravel()[0]:
                self.totals[corrid] = 0
            self.totals[corrid] += get("INPUT").as_numpy()
            tensor = pb_utils.Tensor("OUTPUT", self.totals[corrid].astype(np.int32))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""
STATEFUL_CONFIG = """
backend: "python"
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  control_input [
    { name: "START" control [
      { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [
      { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""


BLS_DECOUPLED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    WAY execute(self, requests):
        responses = []
        for request in requests:
            infer_request = pb_utils.InferenceRequest(
                model_name="repeat",
                requested_output_names=["OUT"],
                inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
            )
            infer_responses = CALL
            found = []
            for infer_response in infer_responses:
                if infer_response.has_error():
                    error = infer_response.error()
                    raise pb_utils.TritonModelException(error.message())
                if len(infer_response.output_tensors()) > 0:
                    tensor = pb_utils.get_output_tensor_by_name(infer_response, "OUT")
                    found.append(tensor.as_numpy())
            tensor = pb_utils.Tensor("OUT", np.array([np.sum(found)], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses
"""
TOLD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        assert self.config["max_batch_size"] == 0 and self.config["parameters"] == {}
        assert int(args["model_instance_name"].split("_")[-1]) >= 0

    def execute(self, requests):
        responses = []
        for request in requests:
            code = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            told = json.loads(request.parameters())
            told |= {"id": request.request_id(), "timeout": request.timeout()}
            text = np.array([json.dumps(told).encode("utf-8")], dtype=np.object_)
            error = None if code < 0 else pb_utils.TritonError("no", code)
            tensor = pb_utils.Tensor("OUT", text)
            more = {"key": "value"} if code == -2 else None
            responses.append(pb_utils.InferenceResponse([tensor], error, more))
        return responses
"""
TOLD_STREAM = """
import json, threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        for _ in range(2):
            told = [request.request_id(), json.loads(request.parameters())]
            text = np.array([json.dumps(told).encode("utf-8")], dtype=np.object_)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
METRICS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.metric_family = pb_utils.MetricFamily(
            name="requests_process_latency_ns",
            description="Cumulative time spent processing requests",
            kind=pb_utils.MetricFamily.COUNTER
        )
        labels = {"model": "metrics", "version": "1"}
        self.metric = self.metric_family.Metric(labels=labels)
        gauge = pb_utils.MetricFamily("last_size", "With a \\\\ in it", 1)
        self.gauge = gauge.Metric()
        histogram = pb_utils.MetricFamily(
            name="sizes", description="", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        self.histogram = histogram.Metric(labels={}, buckets=[1, 2.5])

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            size = int(tensor.as_numpy()[0, 0])
            if size != 1:  # which it is warmed up with
                self.metric.increment(size)
                self.gauge.set(size)
                self.histogram.observe(size)
                assert self.gauge.value() == size
            out = pb_utils.Tensor("OUT", tensor.as_numpy())
            responses.append(pb_utils.InferenceResponse(output_tensors=[out]))
        return responses

    def finalize(self):
        self.metric.increment(1000)
"""
TOLD_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def write(root: Path, name: str, text: str, config: str = "") -> None:
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(textwrap.dedent(text))
    if config:
        (root / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    write(root, "add_sub", ADD_SUB, f'name: "add_sub"{ADD_SUB_CONFIG}')
    write(root, "batched", BATCHED, BATCHED_CONFIG)
    write(root, "repeat", REPEAT, REPEAT_CONFIG)
    write(root, "square", SQUARE)
    write(root, "left", LEFT, REPEAT_CONFIG)
    write(root, "bls_sync", BLS, BLS_CONFIG)
    two = "\n".join(line for line in BLS_CONFIG.splitlines() if "MODEL" not in line)
    two = two.replace('backend: "python"', 'backend: "python"\ninput [')
    write(root, "bls_async", BLS_ASYNC, two)
    write(root, "auto", AUTO)
    write(root, "strings", STRINGS, STRINGS_CONFIG)
    write(root, "stateful", STATEFUL, STATEFUL_CONFIG)
    write(root, "bare", STRINGS)
    repeated = REPEAT_CONFIG.replace("decoupled: true", "decoupled: false")
    for name, way, call in (
        ("bls_decoupled", "def", "infer_request.exec(decoupled=True)"),
        ("bls_decoupled_async", "async def", "await infer_request.async_exec(True)"),
    ):
        text = BLS_DECOUPLED.replace("WAY", way).replace("CALL", call)
        write(root, name, text, repeated)
    write(root, "told", TOLD, TOLD_CONFIG)
    two = BATCHED_CONFIG.replace('name: "batched"', "instance_group { count: 2 }")
    write(root, "metrics", METRICS, two)
    decoupled = "model_transaction_policy { decoupled: true }\n"
    write(root, "told_stream", TOLD_STREAM, TOLD_CONFIG + decoupled)
    with ServedGateway(root, "--allow-python") as gateway:
        yield gateway.wait_ready()


@pytest.fixture(scope="module")
def client(served: ServedGateway) -> Iterator[Any]:
    with triton.InferenceServerClient(served.url.removeprefix("http://")) as found:
        yield found


def infer(
    client: Any, name: str, options: dict[str, Any] | None = None, **arrays: Any
) -> Any:
    inputs = []
    kinds = {"f": "FP32", "i": "INT32", "O": "BYTES"}
    for key, array in arrays.items():
        tensor = triton.InferInput(key, array.shape, kinds[array.dtype.kind])
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return client.infer(name, inputs, **(options or {}))


def four(*values: float) -> Any:
    return np.array(values, np.float32)


EVENTS = "text/event-stream"
A, B = four(1, 2, 3, 4), four(5, 6, 7, 9)


@pytest.mark.parametrize("name", ["add_sub", "auto", "bls_async"])
def test_add_sub(client: Any, name: str) -> None:
    found = infer(client, name, INPUT0=A, INPUT1=B)
    assert (found.as_numpy("OUTPUT0") == A + B).all()
    assert (found.as_numpy("OUTPUT1") == A - B).all()


@pytest.mark.parametrize("error", ["no", TritonError("no"), TritonModelException("no")])
def test_an_error_may_be_a_text_or_an_exception(
    error: TritonError | Exception | str,
) -> None:
    found = InferenceResponse(error=error).error()
    assert found is not None
    assert (found.message(), found.code()) == ("no", TritonError.INTERNAL)


def test_configuration_and_logger(served: ServedGateway, client: Any) -> None:
    served.wait_line("model add_sub/1: model: version 1")
    served.wait_line("model add_sub/1: model: said hello")
    assert client.get_model_config("add_sub")["backend"] == "python"


def test_an_error_is_that_of_its_request(client: Any) -> None:
    with pytest.raises(triton.InferenceServerException, match="An error occurred"):
        infer(client, "add_sub", INPUT0=four(99, 0, 0, 0), INPUT1=B)


@pytest.mark.parametrize("name", ["bls_decoupled", "bls_decoupled_async"])
def test_business_logic_with_several_responses(client: Any, name: str) -> None:
    for count, total in ((5, 10), (0, 0)):
        found = infer(client, name, IN=np.array([count], np.int32))
        assert found.as_numpy("OUT").tolist() == [total]


def test_a_request_tells_of_itself(served: ServedGateway, client: Any) -> None:
    given = {"request_id": "abc", "parameters": {"k": "v"}, "timeout": 9_000_000}
    code = np.array([-1], np.int32)
    found = infer(client, "told", given, IN=code).as_numpy("OUT")
    assert json.loads(found[0]) == {"k": "v", "id": "abc", "timeout": 9_000_000}
    bare = infer(client, "told", IN=code).as_numpy("OUT")
    assert json.loads(bare[0]) == {"id": "", "timeout": 0}
    body = {"id": "x", "inputs": {"IN": [0]}, "parameters": {"n": 1}}
    response = served.client.post(
        "/v1/models/told_stream/infer", json=body, headers={"Accept": EVENTS}
    )
    assert response.text.count(r"[\"x\", {\"n\": 1}]") == 2


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, 400), (1, 500), (2, 404), (3, 400), (4, 503), (5, 501), (6, 409), (7, 499)],
)
def test_codes_of_errors(client: Any, code: int, status: int) -> None:
    with pytest.raises(triton.InferenceServerException) as failed:
        infer(client, "told", IN=np.array([code], np.int32))
    assert failed.value.status() == str(status)


def test_parameters_of_a_response_are_not_lost_in_silence(client: Any) -> None:
    said = 'return {"key": "value"} as an output'
    with pytest.raises(triton.InferenceServerException, match=said) as failed:
        infer(client, "told", IN=np.array([-2], np.int32))
    assert failed.value.status() == "501"


@pytest.mark.parametrize("name", ["add_sub", "nothing", "bls_sync"])
def test_business_logic(client: Any, name: str) -> None:
    arrays = {"MODEL_NAME": np.array([name], object), "INPUT0": A, "INPUT1": B}
    if name == "add_sub":
        found = infer(client, "bls_sync", **arrays)
        assert (found.as_numpy("OUTPUT0") == A + B).all()
        return
    said = "model 'nothing'" if name == "nothing" else "would call itself"
    with pytest.raises(triton.InferenceServerException, match=said):
        infer(client, "bls_sync", **arrays)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ready? add_sub", "add_sub is True"),
        ("ready? add_sub 1", "add_sub is True"),
        ("ready? add_sub 2", "add_sub is False"),
        ("ready? bls_sync", "bls_sync is True"),
        ("ready? nothing", "nothing is False"),
        ("ready? bare", "bare is False"),
        ("load bare", "cannot load other models; run `popgate load bare`, or POST"),
    ],
)
def test_a_model_asks_who_is_ready(client: Any, asked: str, said: str) -> None:
    name = np.array([asked], object)
    with pytest.raises(triton.InferenceServerException, match=said):
        infer(client, "bls_sync", MODEL_NAME=name, INPUT0=A, INPUT1=B)


def test_requests_of_a_batch_stay_apart(served: ServedGateway) -> None:
    sizes = [1, 3, 2, 4]
    tensors = []
    for size in sizes:
        tensor = triton.InferInput("IN", [size, 1], "INT32")
        tensor.set_data_from_numpy(np.full((size, 1), 10**size, np.int32))
        tensors.append(tensor)
    url = served.url.removeprefix("http://")
    with triton.InferenceServerClient(url, concurrency=4) as several:
        under_way = [several.async_infer("batched", [t]) for t in tensors]
        for size, each in zip(sizes, under_way, strict=True):
            out = each.get_result().as_numpy("OUT")
            assert out.tolist() == [[size * 10**size]] * size
    (stats,) = served.client.get("/v2/models/batched/stats").json()["model_stats"]
    assert stats["execution_count"] < stats["inference_count"]


SKEWED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (mine, theirs) = (r.inputs()[0].as_numpy() for r in requests)
        parts = np.concatenate([mine, mine]), theirs[:0]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", p)]) for p in parts]
"""


def test_a_response_has_the_rows_of_its_request() -> None:
    """The rows of one response are never sent to the client of another."""
    module = ModuleType("model")
    exec(SKEWED, vars(module))
    config = document_of(text_format.Parse(BATCHED_CONFIG, config_class()()))
    adapted = adapt(module, config)
    assert adapted is not None
    model = adapted()
    model.load(Context(Path(), {}, "python:0", 1, rows_now=lambda: (2, 2)))
    with pytest.raises(ExecutionFailed, match="'OUT' must have 2 rows, got 4"):
        model(IN=np.arange(4, dtype=np.int32).reshape(4, 1))


FAST = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sent = 0

    def execute(self, requests):
        (request,) = requests
        way = int(request.inputs()[0].as_numpy()[0])
        self.thread = threading.Thread(target=self.answer, args=(request,))
        self.thread.start()
        if way == 1:
            self.thread.join()
        return self.later() if way == 2 else None

    async def later(self):
        self.thread.join()

    def answer(self, request):
        sender = request.get_response_sender()
        for n in range(100):
            out = pb_utils.Tensor("OUT", np.array([n], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse([out]))
            self.sent += 1
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def fast() -> Any:
    module = ModuleType("model")
    exec(FAST, vars(module))
    config = text_format.Parse(REPEAT_CONFIG, config_class()())
    adapted = adapt(module, document_of(config))
    assert adapted is not None
    model = adapted()
    model.load(Context(Path(), {}, "python:0", 1))
    return model


def test_a_thread_waits_for_the_client_of_its_responses(
    fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a client that does not read costs no memory."""
    monkeypatch.setattr(adapter, "LOOK", WAIT)
    ahead: list[int] = []

    def is_full() -> bool:
        return bool(fast.model.sent >= min(len(ahead) + 1 + MOST_WAITING, 100))

    async def read() -> None:
        async for _ in fast(IN=np.array([0], np.int32)):
            until(is_full)
            ahead.append(fast.model.sent - len(ahead) - 1)

    asyncio.run(read())
    assert len(ahead) == 100
    assert max(ahead) == MOST_WAITING


def test_a_thread_goes_on_when_its_client_has_left(fast: Any) -> None:
    async def leave() -> None:
        responses = fast(IN=np.array([0], np.int32))
        await anext(responses)
        await responses.aclose()
        until(lambda: not fast.model.thread.is_alive())

    asyncio.run(leave())


@pytest.mark.parametrize("way", [1, 2])
def test_a_decoupled_model_may_wait_for_its_thread(fast: Any, way: int) -> None:
    async def read() -> list[int]:
        responses = fast(IN=np.array([way], np.int32))
        return [int(outputs["OUT"][0]) async for outputs in responses]

    assert asyncio.run(read()) == list(range(100))


def test_strings(client: Any) -> None:
    found = infer(client, "strings", INPUT0=np.array(["a", "bé"], object))
    assert found.as_numpy("OUTPUT0").tolist() == [b"A", "BÉ".encode()]


@pytest.mark.parametrize(
    ("name", "values"), [("repeat", [0, 1, 2]), ("square", [3] * 3)]
)
def test_decoupled(served: ServedGateway, name: str, values: list[int]) -> None:
    response = served.client.post(
        f"/v2/models/{name}/infer",
        json={"inputs": {"IN": [3]}},
        headers={"Accept": "text/event-stream"},
    )
    lines = [x for x in response.text.splitlines() if x.startswith("data: ")]
    assert response.status_code == 200, response.text
    events = [json.loads(line[6:]) for line in lines]
    assert [event["outputs"][0]["data"] for event in events] == [[v] for v in values]


def test_a_decoupled_model_sees_in_execute_that_its_client_has_left(
    served: ServedGateway,
) -> None:
    """Its process goes on."""

    def ask(value: int, timeout: int) -> Any:
        return served.client.post(
            "/v2/models/left/infer",
            json={"inputs": {"IN": [value]}, "parameters": {"timeout": timeout}},
            headers={"Accept": EVENTS},
        )

    def process() -> str:
        found = ask(0, 60_000_000)
        assert found.status_code == 200, found.text
        return str(found.text)

    before = process()
    left = ask(2, 300_000)
    assert "Request timeout expired" in left.text
    served.wait_line("the client has left")
    assert process() == before


def test_sequences(client: Any) -> None:
    for sequence, expected in ((7, [1, 3]), (8, [1, 3])):
        for value, start in ((1, True), (2, False)):
            tensor = triton.InferInput("INPUT", [1], "INT32")
            tensor.set_data_from_numpy(np.array([value], np.int32))
            found = client.infer(
                "stateful", [tensor], sequence_id=sequence, sequence_start=start
            )
            assert found.as_numpy("OUTPUT")[0] == expected[value - 1]


def test_a_model_without_tensors_says_what_is_missing(served: ServedGateway) -> None:
    index = served.client.post("/v2/repository/index").json()
    (reason,) = (m["reason"] for m in index if m["name"] == "bare")
    assert "config.pbtxt names no input and output" in reason


def shown(served: ServedGateway, **headers: str) -> dict[str, float]:
    lines = served.client.get("/metrics", headers=headers).text.splitlines()
    parts = (line.rsplit(" ", 1) for line in lines if line[0] != "#")
    return {name: float(value) for name, value in parts}


def test_metrics_of_models(served: ServedGateway, client: Any) -> None:
    name = 'requests_process_latency_ns{model="metrics",version="1"}'
    until(lambda: shown(served).get(name) == 0)
    for size in (2, 2, 3, 7):
        infer(client, "metrics", IN=np.array([[size]], np.int32))
    expected = {name: 14, "sizes_sum": 14, "sizes_count": 4}
    for bound, count in (("1.0", 0), ("2.5", 2), ("+Inf", 4)):
        expected[f'sizes_bucket{{le="{bound}"}}'] = count
    until(lambda: expected.items() <= shown(served).items())
    assert shown(served)["last_size"] in (2, 3, 7)
    text = served.client.get("/metrics").text
    assert "# HELP last_size With a \\\\ in it\n# TYPE last_size gauge\n" in text
    client.unload_model("metrics")
    # Each instance tells the last of it; what counts stays, what is now goes.
    until(lambda: shown(served)[name] == 2014)
    until(lambda: "last_size" not in shown(served))
    client.load_model("metrics")
    infer(client, "metrics", IN=np.array([[5]], np.int32))
    until(lambda: shown(served)[name] == 2019)
