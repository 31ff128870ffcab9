"""Models that run step by step: state, order, what ends them, what is refused.

Covers: plugins/stateful/src/popgate_stateful/state_tensors.py.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.codec import Encoding, InferRequest
from app.codec.half_floats import unpack_bf16
from app.config.stateful_config import StateConfig, StepsConfig
from app.errors import InvalidRequest
from app.spec import ModelSpec, TensorSpec
from engine import Cancelled, DeviceLost, EngineError, QueueFull, Tensor
from popef_io import DataType
from popgate_stateful.state_tensors import Control
from popgate_stateful.steps import StepRun, StepScheduler


class Step:
    """A run of the `Counter`."""

    def __init__(self, inputs: Mapping[str, Tensor], on_done: Any) -> None:
        self.inputs = {k: t.numpy().reshape(-1)[0] for k, t in inputs.items()}
        self.done = False
        self.error: EngineError | None = None
        self.outputs: Mapping[str, Tensor] = {}
        self.queue_ns, self.compute_ns, self.batch_rows = 1, 2, 3
        self.batch_length = 0
        self.device_id = "cpu:0"
        self._on_done = on_done

    def resolve(self, error: EngineError | None = None) -> None:
        if self.done:
            return
        self.done, self.error = True, error
        if error is None:
            self.outputs = self._count()
        self._on_done(self)

    def abandon(self, error: EngineError) -> None:
        self.resolve(error)

    def _count(self) -> Mapping[str, Tensor]:
        """The sum so far; every step but odd ones gives it; `stop` steps in all."""
        given = self.inputs
        total = given["x"] + given["before"]
        values = {
            "y": np.array([total], np.int64),
            "after": np.array([total], np.int64),
            "more": np.array([given["step"] + 1 < given["stop"]]),
            "emit": np.array([given["step"] % 2 == 0]),
            "error": np.array([given["fail"]], dtype=np.object_),
            "wait": np.array([given["pause"]], np.float32),
        }
        return {name: Tensor.from_numpy(array) for name, array in values.items()}


class Growing(Step):
    """A run that puts out a state with one value more than it was given."""

    def __init__(self, inputs: Mapping[str, Tensor], on_done: Any) -> None:
        super().__init__(inputs, on_done)
        self._before = inputs["before"].numpy()

    def _count(self) -> Mapping[str, Tensor]:
        after = Tensor.from_numpy(np.append(self._before, 0))
        return {**super()._count(), "after": after}


class Counter:
    """A runner whose runs are done when tests say so."""

    kind = Step

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.refuse: EngineError | None = None

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
    ) -> Step:
        if self.refuse is not None:
            raise self.refuse
        self.steps.append(self.kind(inputs, on_done))
        return self.steps[-1]

    def finish(self, error: EngineError | None = None) -> None:
        """Ends the step that runs."""
        self.steps[-1].resolve(error)

    def finish_all(self) -> None:
        while not self.steps[-1].done:
            self.finish()


def tensors(**datatypes: str) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.make(n, d, (1,)) for n, d in datatypes.items())


SPEC = ModelSpec(
    "m",
    "1",
    tensors(
        x="INT64",
        before="INT64",
        step="INT32",
        stop="INT64",
        fail="BYTES",
        pause="FP32",
    ),
    tensors(
        y="INT64", after="INT64", more="BOOL", emit="BOOL", error="BYTES", wait="FP32"
    ),
)
CONFIG: dict[str, Any] = {
    "more": "more",
    "emit": "emit",
    "error": "error",
    "delay": "wait",
    "step": "step",
    "state": (StateConfig("before", "after"),),
    "parameters": {"stop": 1, "fail": "", "pause": 0.0},
}


class Client:
    """A scheduler over a `Counter`, and what comes of one request."""

    def __init__(self, **changes: Any) -> None:
        self.runner = Counter()
        config = StepsConfig(**(CONFIG | changes))
        self.scheduler = StepScheduler(SPEC, self.runner, config, Path())
        self.responses: list[int] = []
        self.ended: list[Exception | None] = []

    def request(self, **parameters: Any) -> InferRequest:
        x = Tensor.from_numpy(np.array([5], np.int64))
        request = InferRequest({"x": x}, Encoding.JSON)
        request.parameters = parameters
        return request

    def stream(self, **parameters: Any) -> StepRun:
        return self.scheduler.stream(
            self.request(**parameters), 0.0, self._take, self._end
        )

    def submit(self, **parameters: Any) -> StepRun:
        return self.scheduler.submit(self.request(**parameters), 0.0, self._end)

    def _take(self, outputs: Mapping[str, Tensor]) -> None:
        self.responses.append(int(outputs["y"].numpy()[0]))

    def _end(self, run: StepRun) -> None:
        self.ended.append(run.error)


def test_what_requests_see() -> None:
    spec = Client().scheduler.visible
    assert [t.name for t in spec.inputs] == ["x"]
    assert [t.name for t in spec.outputs] == ["y"]


def test_steps_responses_and_state() -> None:
    client = Client()
    run = client.stream(stop=5, other="ignored by the model")
    client.runner.finish()
    assert client.responses == [5]
    assert len(client.runner.steps) == 1  # the next one waits for the reader
    run.proceed()
    client.runner.finish_all()
    run.proceed()
    client.runner.finish_all()
    assert client.ended == []
    run.proceed()
    assert client.responses == [5, 15, 25]
    assert client.ended == [None]
    assert [s.inputs["step"] for s in client.runner.steps] == [0, 1, 2, 3, 4]
    assert [s.inputs["before"] for s in client.runner.steps] == [0, 5, 10, 15, 20]
    assert (run.queue_ns, run.compute_ns, run.batch_rows) == (5, 10, 3)
    run.proceed()  # nothing is left to do
    assert client.ended == [None]


def test_a_request_with_one_response() -> None:
    client = Client()
    run = client.submit()
    client.runner.finish()
    assert client.ended == [None]
    assert int(run.outputs["y"].numpy()[0]) == 5
    client = Client()
    run = client.submit(stop=2)  # the second step gives none
    client.runner.finish_all()
    assert client.ended == [None]
    assert int(run.outputs["y"].numpy()[0]) == 5


def test_a_request_with_several_responses_but_room_for_one() -> None:
    client = Client()
    client.submit(stop=9)
    client.runner.finish_all()
    assert "gave several responses" in str(client.ended[0])
    assert len(client.runner.steps) == 3  # and no further step is run


def test_no_response_is_too_few() -> None:
    client = Client(emit="more", more="")
    client.submit()
    client.runner.finish_all()
    assert "gave no responses where exactly 1" in str(client.ended[0])


def test_an_error_of_the_model() -> None:
    client = Client()
    client.stream(stop=5, fail="no luck")
    client.runner.finish()
    assert client.responses == []
    assert str(client.ended[0]) == "no luck"


def test_a_step_that_fails() -> None:
    client = Client()
    run = client.stream(stop=5)
    client.runner.finish()
    run.proceed()
    client.runner.finish(DeviceLost("gone"))
    assert client.responses == [5]
    assert isinstance(client.ended[0], DeviceLost)


def test_a_step_that_is_refused() -> None:
    client = Client()
    run = client.stream(stop=5)
    client.runner.finish()
    client.runner.refuse = DeviceLost("gone")
    run.proceed()
    assert isinstance(client.ended[0], DeviceLost)
    with pytest.raises(DeviceLost):
        client.stream()


def test_given_up_between_steps_and_within_one() -> None:
    client = Client()
    run = client.stream(stop=5)
    client.runner.finish()
    run.abandon(Cancelled("gone"))
    run.proceed()
    assert len(client.runner.steps) == 1
    run = client.stream(stop=5)
    run.abandon(Cancelled("gone"))
    assert client.runner.steps[-1].done
    assert [type(e) for e in client.ended] == [Cancelled, Cancelled]


def test_no_end() -> None:
    client = Client(max_steps=3, emit="")
    run = client.stream(stop=1000)
    for _ in range(4):
        client.runner.finish()
        run.proceed()
    assert client.responses == [5, 10, 15]
    assert "did not finish within 3 steps" in str(client.ended[0])


def test_states_that_grow_have_a_limit_together() -> None:
    """By 8 bytes for each step, beside the 8 bytes that each begins with."""
    client = Client(max_state_bytes=40, emit="")
    client.runner.kind = Growing
    one, other = client.stream(stop=9), client.stream(stop=9)
    for step in tuple(client.runner.steps):
        step.resolve()
    for _ in range(3):
        one.proceed()
        client.runner.finish()
    assert client.ended == []
    other.proceed()
    client.runner.finish()
    (refused,) = client.ended
    assert isinstance(refused, QueueFull)
    assert "would grow to 48 bytes more" in str(refused)
    one.proceed()  # which has the room of the other one
    client.runner.finish()
    assert client.ended == [refused]
    one.abandon(Cancelled("gone"))
    another = client.stream(stop=9)
    for _ in range(5):
        client.runner.finish()
        another.proceed()
    assert len(client.ended) == 2
    assert len(client.responses) == 2 + 3 + 1 + 5


def test_a_pause_before_the_response() -> None:
    async def main() -> None:
        client = Client()
        given_up = client.stream(pause=3600.0)
        client.runner.finish()
        assert client.ended == []
        given_up.abandon(Cancelled("gone"))
        done = asyncio.Event()
        client.scheduler.stream(
            client.request(pause=0.001), 0.0, client._take, lambda run: done.set()
        )
        client.runner.finish()
        assert client.responses == []
        async with asyncio.timeout(10):
            while not client.responses:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"stop": "x"}, "parameter 'stop' must be a number, got 'x'"),
        ({"stop": 1 << 64}, "parameter 'stop' must be a whole number from "),
        ({"fail": 1}, "parameter 'fail' must be a string, got 1"),
        ({"pause": 1e300}, "parameter 'pause' must be a number that FP32 holds, got 1"),
        ({"pause": True}, "parameter 'pause' must be a number, got True"),
        ({"stop": True}, "parameter 'stop' must be a number, got True"),
    ],
)
def test_parameters_that_the_model_cannot_take(
    parameters: dict[str, Any], text: str
) -> None:
    client = Client()
    with pytest.raises(InvalidRequest, match=text):
        client.stream(**parameters)
    assert client.runner.steps == []


@pytest.mark.parametrize(
    ("datatype", "largest", "too_large"),
    [
        ("FP16", 65504.0, 65520.0),
        ("BF16", 3.3895313892515355e38, 3.4e38),
        ("FP32", 3.4028234663852886e38, 3.5e38),
    ],
)
def test_floats_are_rounded_and_infinity_is_only_what_it_is(
    datatype: str, largest: float, too_large: float
) -> None:
    (spec,) = tensors(x=datatype)
    control = Control(ModelSpec("m", "1", (spec,), ()), "x", "step")
    for value in (0.5, -largest, math.inf, -0.0):
        (found,) = read(control.tensor(value))
        assert (found, math.copysign(1, found)) == (value, math.copysign(1, value))
    # BF16 holds 258 and 260, and a tie goes to the even one.
    rounded = 260.0 if datatype == "BF16" else 259.0
    assert read(control.tensor(259)) == [rounded]
    assert math.isnan(read(control.tensor(math.nan))[0])
    for value in (too_large, -too_large):
        with pytest.raises(ValueError, match=f"a number that {datatype} holds"):
            control.tensor(value)


def read(tensor: Tensor) -> list[float]:
    found = tensor.numpy()
    if tensor.data_type is DataType.BF16:
        found = unpack_bf16(found)
    numbers: list[float] = found.astype(np.float64).tolist()
    return numbers


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"step": "no"}, "the model has no input 'no' .responses.step."),
        ({"more": "no"}, "the model has no output 'no' .responses.more."),
        ({"more": "y", "emit": ""}, r"output 'y' .responses.more. must be one BOOL"),
        ({"parameters": {"stop": "x"}}, "parameter 'stop' must be a number"),
        (
            {"parameters": {"no": 1}},
            "the model has no input 'no' .responses.parameters.",
        ),
        ({"emit": "more"}, "these outputs have two roles"),
        ({"step": "stop"}, "these inputs have two roles"),
    ],
)
def test_models_that_have_not_what_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Client(**changes)


def test_a_response_that_cannot_be_taken_ends_the_request() -> None:
    def refuse(outputs: Mapping[str, Tensor]) -> None:
        raise MemoryError

    client = Client()
    request = client.request(stop=5)
    run = client.scheduler.stream(request, 0.0, refuse, client._end)
    client.runner.finish()
    assert run.done
    assert [type(error) for error in client.ended] == [MemoryError]
