"""Sequences: order, state, what begins and ends one, and the bounds.

Covers: app/config/stateful_config.py,
plugins/stateful/src/popgate_stateful/state_memory.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.codec import Encoding, InferRequest
from app.config.stateful_config import SequenceConfig, StateConfig
from app.errors import InvalidRequest
from app.spec import ModelSpec, TensorSpec
from engine import (
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    EngineError,
    ExecutionFailed,
    QueueFull,
    Tensor,
)
from popgate_stateful.sequences import SequenceRequest, SequenceScheduler

WAIT = 10.0


class Summed:
    """A run of the `Summer`."""

    def __init__(self, inputs: Mapping[str, Tensor], on_done: Any) -> None:
        self.inputs = inputs
        self.done = False
        self.error: EngineError | None = None
        self.outputs: Mapping[str, Tensor] = {}
        self.queue_ns = self.compute_ns = self.batch_rows = 1
        self.batch_length = 0
        self.device_id = "cpu:0"
        self._on_done = on_done

    def resolve(self, error: EngineError | None = None) -> None:
        if self.done:
            return
        self.done, self.error = True, error
        if error is None:
            total = self.inputs["x"].numpy() + self.inputs["before"].numpy()
            tensor = Tensor.from_numpy(total)
            self.outputs = {"y": tensor, "after": tensor}
        self._on_done(self)

    def abandon(self, error: EngineError) -> None:
        self.resolve(error)

    def flag(self, name: str) -> int:
        return int(self.inputs[name].numpy().item())


class Collected(Summed):
    """A run of after = (before, x), which grows by a row with each request."""

    def resolve(self, error: EngineError | None = None) -> None:
        if error is None and not self.done:
            self.done = True
            both = [self.inputs[name].numpy() for name in ("before", "x")]
            after = Tensor.from_numpy(np.concatenate(both))
            self.outputs = {"y": self.inputs["x"], "after": after}
            self._on_done(self)
        super().resolve(error)


class Summer:
    """A runner of after = before + x; tests say when a run is done."""

    def __init__(self) -> None:
        self.runs: list[Summed] = []
        self.refuse: EngineError | None = None
        self.at_once = False
        self.kind = Summed

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
    ) -> Summed:
        if self.refuse is not None:
            raise self.refuse
        run = self.kind(inputs, on_done)
        self.runs.append(run)
        if self.at_once:
            run.resolve()
        return run


INPUTS = ("x", "before", "first", "last")
SPEC = ModelSpec(
    "m",
    "1",
    (
        *(TensorSpec.make(n, "INT64", (-1, 1)) for n in INPUTS),
        TensorSpec.make("who", "UINT32", (-1, 1)),
        TensorSpec.make("on", "BOOL", (1,)),
    ),
    tuple(TensorSpec.make(n, "INT64", (-1, 1)) for n in ("y", "after")),
    8,
)


def config(**changes: Any) -> SequenceConfig:
    values: dict[str, Any] = {
        "start": "first",
        "end": "last",
        "ready": "on",
        "correlation_id": "who",
        "state": (StateConfig("before", "after"),),
        "max_idle": 60.0,
    }
    return SequenceConfig(**(values | changes))


class Client:
    """A scheduler over a `Summer`, and what became of its requests."""

    def __init__(self, folder: Path = Path(), **changes: Any) -> None:
        self.runner = Summer()
        self.scheduler = SequenceScheduler(SPEC, self.runner, config(**changes), folder)
        self.answers: list[int | str] = []

    def ask(
        self,
        identifier: Any,
        x: int,
        flags: str = "",
        rows: int = 1,
        owner: str | None = None,
    ) -> Any:
        tensor = Tensor.from_numpy(np.full((rows, 1), x, np.int64))
        request = InferRequest({"x": tensor}, Encoding.JSON)
        request.rows = rows
        request.owner = owner
        request.parameters = {
            "sequence_id": identifier,
            "sequence_start": "s" in flags,
            "sequence_end": "e" in flags,
        }
        return self.scheduler.submit(request, 0.0, self._done)

    def _done(self, request: SequenceRequest) -> None:
        if request.error is not None:
            self.answers.append(type(request.error).__name__)
        else:
            self.answers.append(int(request.outputs["y"].numpy().item()))

    def finish(self, error: EngineError | None = None) -> None:
        """Ends the oldest run that is not done."""
        next(run for run in self.runner.runs if not run.done).resolve(error)


def run(test: Callable[[], Any]) -> None:
    async def main() -> None:
        result = test()
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(main())


def test_states_that_grow_have_a_limit_together() -> None:
    """By 8 bytes for each request, beside the 8 bytes that each begins with."""

    async def test() -> None:
        client = Client(max_state_bytes=32, max_idle=0.2)
        client.runner.kind, client.runner.at_once = Collected, True
        for x, flags in ((1, "s"), (2, ""), (3, "")):
            client.ask(1, x, flags)
        client.ask(2, 5, "s")
        assert client.answers == [1, 2, 3, 5]
        client.ask(1, 4)
        assert client.answers.pop() == "QueueFull"
        assert client.runner.runs[-1].inputs["before"].shape == (4, 1)
        client.ask(1, 4, "e")  # whose state nobody needs
        for x in (6, 7, 8):
            client.ask(2, x)
        assert client.answers[4:] == [4, 6, 7, 8]
        client.ask(3, 9, "s")
        assert client.answers.pop() == "QueueFull"
        while len(client.scheduler):  # noqa: ASYNC110 - idle ones make room, too
            await asyncio.sleep(0.01)
        for x, flags in ((1, "s"), (2, ""), (3, ""), (4, "")):
            client.ask(4, x, flags)
        assert client.answers[8:] == [1, 2, 3, 4]

    run(test)


def test_states_that_do_not_grow_always_have_room() -> None:
    def test() -> None:
        client = Client(max_state_bytes=0, max_sequences=3)
        client.runner.at_once = True
        for identifier in (1, 2, 3):
            client.ask(identifier, identifier, "s")
            client.ask(identifier, 1)
        assert client.answers == [1, 2, 2, 3, 3, 4]

    run(test)


def test_what_requests_see() -> None:
    spec = Client().scheduler.visible
    assert [t.name for t in spec.inputs] == ["x"]
    assert [t.name for t in spec.outputs] == ["y"]


def test_state_and_controls() -> None:
    def test() -> None:
        client = Client()
        client.runner.at_once = True
        for x, flags in ((5, "s"), (6, ""), (7, "e")):
            client.ask(42, x, flags)
        assert client.answers == [5, 11, 18]
        runs = client.runner.runs
        assert [r.flag("first") for r in runs] == [1, 0, 0]
        assert [r.flag("last") for r in runs] == [0, 0, 1]
        assert {r.flag("who") for r in runs} == {42}
        assert {r.flag("on") for r in runs} == {1}
        assert len(client.scheduler) == 0

    run(test)


def test_requests_of_one_sequence_are_ordered_and_others_run_beside() -> None:
    def test() -> None:
        client = Client()
        client.ask(1, 1, "s")
        client.ask(1, 10)
        client.ask("2", 100, "s")
        assert len(client.runner.runs) == 2
        client.finish()
        client.finish()
        client.finish()
        assert client.answers == [1, 100, 11]

    run(test)


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        (0, "must specify a non-zero or non-empty correlation ID"),
        ("", "must specify a non-zero or non-empty correlation ID"),
        (None, "must specify a non-zero or non-empty correlation ID"),
        (7, "must specify the START flag on the first request of the sequence"),
        (-1, "'sequence_id' must be an unsigned integer of 64 bits"),
        (True, "'sequence_id' must be an unsigned integer of 64 bits"),
        (1.5, "'sequence_id' must be an unsigned integer of 64 bits"),
        ("x" * 300, "'sequence_id' must be an unsigned integer of 64 bits"),
    ],
)
def test_requests_of_no_sequence(identifier: Any, text: str) -> None:
    def test() -> None:
        client = Client()
        with pytest.raises(InvalidRequest, match=text.replace("'", ".")):
            client.ask(identifier, 1)
        assert len(client.scheduler) == 0

    run(test)


def test_an_identifier_that_the_model_cannot_take() -> None:
    def test() -> None:
        client = Client()
        with pytest.raises(InvalidRequest, match="whole number from 0 to 4294967295"):
            client.ask(1 << 32, 1, "s")
        for text in ("abc", "\u0667\u0667"):
            with pytest.raises(InvalidRequest, match="a number"):
                client.ask(text, 1, "s")
        client.ask("77", 1, "s")
        assert client.runner.runs[0].flag("who") == 77

    run(test)


def test_one_row_only() -> None:
    def test() -> None:
        with pytest.raises(InvalidRequest, match="must specify batch-size 1 due to"):
            Client().ask(1, 1, "s", rows=2)

    run(test)


def test_a_start_begins_anew() -> None:
    def test() -> None:
        client = Client()
        client.runner.at_once = True
        client.ask(1, 5, "s")
        client.ask(1, 6, "s")
        client.ask(1, 1)
        assert client.answers == [5, 6, 7]

    run(test)


def test_a_sequence_that_ends_and_begins_while_requests_wait() -> None:
    def test() -> None:
        client = Client()
        client.ask(1, 5, "s")
        client.ask(1, 6, "e")
        with pytest.raises(InvalidRequest, match="START flag"):
            client.ask(1, 7)
        client.ask(1, 8, "s")
        for _ in range(3):
            client.finish()
        assert client.answers == [5, 11, 8]
        assert len(client.scheduler) == 1

    run(test)


def test_a_failure_leaves_the_state_as_it_was() -> None:
    def test() -> None:
        client = Client()
        client.ask(1, 5, "s")
        client.finish()
        client.ask(1, 6)
        client.finish(ExecutionFailed("no"))
        client.ask(1, 7, "e")
        client.finish()
        assert client.answers == [5, "ExecutionFailed", 12]
        assert len(client.scheduler) == 0

    run(test)


def test_given_up_while_waiting_and_while_running() -> None:
    def test() -> None:
        client = Client()
        first = client.ask(1, 5, "s")
        second = client.ask(1, 6)
        client.ask(1, 7)
        second.abandon(Cancelled("gone"))
        assert client.answers == ["Cancelled"]
        first.abandon(Cancelled("gone"))
        client.finish()
        assert client.answers == ["Cancelled", "Cancelled", 7]
        assert len(client.runner.runs) == 2

    run(test)


def test_what_is_refused_was_never_there() -> None:
    def test() -> None:
        client = Client()
        client.runner.refuse = DeviceLost("no")
        with pytest.raises(DeviceLost):
            client.ask(1, 5, "s")
        assert len(client.scheduler) == 0
        client.runner.refuse = None
        client.runner.at_once = True
        client.ask(1, 5, "s")
        client.runner.refuse = DeviceLost("no")
        for flags in ("e", "s"):
            with pytest.raises(DeviceLost):
                client.ask(1, 6, flags)
        client.runner.refuse = None
        client.ask(1, 6, "e")
        assert client.answers == [5, 11]

    run(test)


def test_what_waits_fails_when_the_device_is_gone() -> None:
    def test() -> None:
        client = Client()
        client.ask(1, 5, "s")
        client.ask(1, 6)
        client.ask(1, 7, "e")
        client.runner.refuse = DeviceLost("no")
        client.finish(DeviceLost("no"))
        assert client.answers == ["DeviceLost"] * 3
        assert len(client.scheduler) == 0

    run(test)


def test_bounds() -> None:
    def test() -> None:
        client = Client(max_sequences=2, max_waiting=1)
        client.ask(1, 5, "s")
        client.ask(2, 5, "s")
        with pytest.raises(QueueFull, match="max_sequences is 2") as caught:
            client.ask(3, 5, "s")
        assert caught.value.retry_after == 60.0
        client.ask(1, 5)
        with pytest.raises(QueueFull, match="requests of sequence 1"):
            client.ask(1, 5)

    run(test)


def test_a_key_has_a_share_of_the_sequences() -> None:
    """A key may have as many as are free; without keys there is no share."""

    def test() -> None:
        client = Client(max_sequences=6)
        client.runner.at_once = True
        for owner, most in (("a", 3), ("b", 2), ("c", 1)):
            for number in range(1, most + 1):
                client.ask(number, 5, "s", owner=owner)
            with pytest.raises(QueueFull, match="max_sequences is 6"):
                client.ask(most + 1, 5, "s", owner=owner)
        for number in (1, 2, 3):
            client.ask(number, 1, "e", owner="a")
        client.ask(7, 5, "s", owner="c")
        assert client.scheduler._owned == {"b": 2, "c": 2}

    run(test)


def test_a_slot_goes_to_the_key_with_the_fewest() -> None:
    def test() -> None:
        client = Client(max_active=2)
        for number in (1, 2, 3, 4):
            client.ask(number, number, "s", owner="a")
        client.ask(1, 50, "se", owner="b")
        client.ask(1, 0, "e", owner="a")
        client.finish()  # sequence 1 of a, whose next request ends it
        client.finish()  # 2
        client.finish()
        assert client.answers == [1, 2, 1]
        assert client.runner.runs[-1].inputs["x"].numpy().item() == 50

    run(test)


def test_idle_sequences_end() -> None:
    async def test() -> None:
        client = Client(max_idle=0.001)
        client.ask(1, 5, "s")
        client.ask(2, 5, "s")
        client.finish()
        async with asyncio.timeout(WAIT):
            while len(client.scheduler) == 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        with pytest.raises(InvalidRequest, match="START flag"):
            client.ask(1, 6)
        client.ask(2, 6)  # which still runs, and so was not idle
        client.finish()
        client.finish()
        assert client.answers == [5, 5, 11]

    run(test)


def test_the_first_value_comes_from_a_file(tmp_path: Path) -> None:
    def test() -> None:
        np.save(tmp_path / "start.npy", np.array([[100]], np.int64))
        state = StateConfig("before", "after", "start.npy")
        client = Client(tmp_path, state=(state,))
        client.runner.at_once = True
        client.ask(1, 5, "s")
        assert client.answers == [105]

    run(test)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"start": "no"}, "the model has no input 'no' .sequence.start.; it has x, "),
        (
            {"state": (StateConfig("no", "after"),)},
            "the model has no input 'no' .state.",
        ),
        ({"state": (StateConfig("x", "no"),)}, "the model has no output 'no' .state."),
        (
            {"correlation_id": "", "state": (StateConfig("who", "after"),)},
            "is UINT32, but its output 'after'",
        ),
        ({"state": (StateConfig("x", "y", "none.npy"),)}, "cannot be read"),
        ({"state": (StateConfig("x", "y", shape=(3,)),)}, "the model expects .-1, 1."),
    ],
)
def test_models_that_have_not_what_is_named(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=text):
        Client(tmp_path, **changes)


def test_a_file_of_another_type(tmp_path: Path) -> None:
    np.save(tmp_path / "start.npy", np.zeros((1, 1), np.float32))
    with pytest.raises(ValueError, match="holds float32, but input 'before' is INT64"):
        Client(tmp_path, state=(StateConfig("before", "after", "start.npy"),))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: StateConfig("a", ""), "name both input and output"),
        (lambda: StateConfig("a", "b", "../c.npy"), "name of a file"),
        (
            lambda: config(end="first"),
            "these inputs have two roles: before, first, first",
        ),
    ],
)
def test_sections_that_contradict_themselves(
    make: Callable[[], Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_sequences_wait_for_a_slot() -> None:
    """`max_active`: one more than that waits until another ends, and is not refused."""

    def test() -> None:
        client = Client(max_active=2)
        for who in (1, 2, 3, 4):
            client.ask(who, who, "s")
        client.ask(3, 10, "e")
        assert [r.flag("who") for r in client.runner.runs] == [1, 2]
        client.finish()
        client.finish()
        assert client.answers == [1, 2]
        assert len(client.runner.runs) == 2  # both live on, and keep their slots
        client.ask(1, 5, "e")
        client.finish()
        assert [r.flag("who") for r in client.runner.runs] == [1, 2, 1, 3]
        client.finish()  # its second request follows, and ends it: the fourth may
        client.finish()
        assert client.answers == [1, 2, 6, 3, 13]
        assert client.runner.runs[-1].flag("who") == 4
        assert len(client.scheduler) == 2

    run(test)


def test_an_idle_sequence_gives_its_slot_to_the_next() -> None:
    async def test() -> None:
        client = Client(max_active=1, max_idle=0.05)
        client.runner.at_once = True
        client.ask(1, 1, "s")
        answered = asyncio.Event()
        request = client.ask(2, 2, "se")
        request.on_done = lambda request: answered.set()
        async with asyncio.timeout(WAIT):
            await answered.wait()
        assert request.error is None

    run(test)


def test_a_first_request_that_is_given_up_while_it_waits() -> None:
    """What follows it has no state to go on with; the slot is not lost."""

    def test() -> None:
        client = Client(max_active=1)
        client.ask(1, 1, "s")
        first = client.ask(2, 2, "s")
        client.ask(2, 3)
        client.ask(3, 4, "se")
        first.abandon(Cancelled("gone"))
        client.finish()
        client.ask(1, 1, "e")
        client.finish()
        assert client.answers == ["Cancelled", 1, "InvalidRequest", 2]
        client.finish()
        assert client.answers[-1] == 4
        assert len(client.scheduler) == 0

    run(test)


def test_a_request_that_is_given_up_while_it_waits_keeps_no_inputs() -> None:
    """Its place may remain in the line for as long as others hold the slots."""

    def test() -> None:
        client = Client(max_active=1)
        client.ask(1, 1, "s")
        waiting = [client.ask(2, 2, "s"), client.ask(1, 3), client.ask(2, 4)]
        for request in waiting[:2]:
            request.abandon(DeadlineExceeded())
        assert [list(one.inputs) for one in waiting] == [[], [], ["x"]]
        assert client.scheduler.waiting == 1

    run(test)


def test_a_sequence_whose_requests_are_given_up_takes_no_place() -> None:
    """While another one had the slot, it kept its place among `max_sequences`."""

    def test() -> None:
        client = Client(max_active=1, max_sequences=2)
        client.ask(1, 1, "s")
        for identifier in range(2, 5):
            waiting = [client.ask(identifier, 2, "s"), client.ask(identifier, 3)]
            for request in waiting:
                request.abandon(DeadlineExceeded())
            assert len(client.scheduler) == 1
            assert client.scheduler.waiting == 0
        with pytest.raises(InvalidRequest, match="START"):
            client.ask(2, 4)
        client.ask(2, 5, "s")
        client.finish()
        client.ask(1, 1, "e")
        client.finish()
        client.finish()
        assert client.answers == [*["DeadlineExceeded"] * 6, 1, 2, 5]

    run(test)


def test_requests_that_are_given_up_leave_the_line_to_others() -> None:
    def test() -> None:
        client = Client(max_waiting=2)
        client.ask(1, 1, "s")
        for flags in [*("s", "", "e") * 5, "s"]:
            client.ask(1, 9, flags).abandon(Cancelled("gone"))
        sequence = client.scheduler._sequences[None, 1]
        assert len(sequence.waiting) <= 4
        client.ask(1, 2)
        client.ask(1, 3, "s")
        with pytest.raises(QueueFull, match="2 requests of sequence 1 of model"):
            client.ask(1, 4)
        del client.answers[:]
        client.finish()
        client.finish()
        # The second would have continued a sequence whose start was given up.
        assert client.answers == [1, "InvalidRequest", 3]

    run(test)


def test_requests_between_that_are_given_up_change_no_state() -> None:
    def test() -> None:
        client = Client(max_waiting=1)
        client.ask(1, 1, "s")
        for _ in range(5):
            client.ask(1, 9).abandon(Cancelled("gone"))
        client.ask(1, 2)
        del client.answers[:]
        client.finish()
        client.finish()
        assert client.answers == [1, 3]

    run(test)


@pytest.mark.parametrize("ends", ["", "e"])
def test_a_start_that_is_given_up_while_it_waits_ends_what_was_before(
    ends: str,
) -> None:
    """Else the next request continued the sequence before it, or ran without state."""

    def test() -> None:
        client = Client()
        client.ask(1, 1, "s" + ends)
        waiting = client.ask(1, 10, "s")
        client.ask(1, 100)
        waiting.abandon(Cancelled("gone"))
        client.finish()
        assert client.answers == ["Cancelled", 1, "InvalidRequest"]
        client.ask(1, 5, "s")
        client.finish()
        assert client.answers[-1] == 5

    run(test)


def test_one_timer_however_long_a_sequence_is_busy() -> None:
    async def test() -> None:
        client = Client(max_idle=0.001)
        loop = asyncio.get_running_loop()
        armed: list[float] = []
        call_at = loop.call_at

        def count(when: float, *arguments: Any, **options: Any) -> Any:
            armed.append(when)
            return call_at(when, *arguments, **options)

        loop.call_at = count  # type: ignore[method-assign,assignment]
        client.ask(1, 1, "s")
        client.ask(2, 1, "s")
        for expected in range(2, 6):
            client.scheduler.expire()
            assert len(armed) <= expected

    run(test)


def test_those_behind_one_whose_caller_fails_run_all_the_same() -> None:
    def refuse(request: SequenceRequest) -> None:
        raise MemoryError

    async def test() -> None:
        client = Client()
        x = Tensor.from_numpy(np.ones((1, 1), np.int64))
        request = InferRequest({"x": x}, Encoding.JSON)
        request.parameters = {"sequence_id": 7, "sequence_start": True}
        client.scheduler.submit(request, 0.0, refuse)
        client.ask(7, 2)
        client.ask(7, 3, "e")
        with pytest.raises(MemoryError):
            client.finish()
        client.finish()
        client.finish()
        assert client.answers == [3, 6]
        assert len(client.scheduler) == 0

    run(test)
