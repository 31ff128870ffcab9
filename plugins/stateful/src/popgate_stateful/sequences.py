"""Sequences: requests that follow each other and share a state of the model.

The names are the protocol's: the first request carries ``sequence_start``, the last
``sequence_end``, and all of them the same ``sequence_id``. Between two requests the
gateway keeps the state, which is an output of one run and an input of the next. So any
replica may run any request, requests of different sequences share batches, and the loss
of a device ends no sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from app.codec.messages import InferRequest
from app.config.stateful_config import SequenceConfig
from app.errors import InvalidRequest
from app.serving.pending import Pending
from app.serving.runner import Runner, Submitted
from app.serving.stateful import StatefulScheduler
from app.sizes import counted
from app.spec import ModelSpec
from engine import EngineError, QueueFull, Tensor
from popgate_stateful.sequence_slots import SequenceSlots, count_down
from popgate_stateful.state_memory import StateMemory
from popgate_stateful.state_tensors import Control, States

SequenceId: TypeAlias = int | str
#: The key that sequences belong to, as in `InferRequest.owner`.
Owner: TypeAlias = str | None
_MAX_ID_BYTES = 256
#: The parameters of a request that starts a sequence and ends it.
_SEQUENCE: Mapping[str, Any] = {
    "sequence_id": 1,
    "sequence_start": True,
    "sequence_end": True,
}
#: The same, if the identifier must be a string.
_NAMED_SEQUENCE: Mapping[str, Any] = {**_SEQUENCE, "sequence_id": "example"}


class SequenceRequest(Pending):
    """A request that waits for the requests before it, then for its device.

    A cancelled request leaves the state of its sequence unchanged.
    """

    inner: Submitted | None = None
    #: Called if it is given up while it waits.
    on_given_up: Callable[[], None] | None = None

    def __init__(
        self,
        request: InferRequest,
        deadline: float,
        on_done: Callable[[Any], None],
        *,
        start: bool,
        end: bool,
    ) -> None:
        super().__init__(request.inputs, deadline, on_done, request.priority)
        self.start = start
        self.end = end

    def give_up(self, error: EngineError) -> None:
        if self.inner is not None and not self.inner.done:
            self.inner.abandon(error)  # this resolves the request as well
        on_given_up, self.on_given_up = self.on_given_up, None
        if on_given_up is not None:
            self.inputs = {}  # its place in the line may remain for long
            on_given_up()


class LiveSequence:
    """One live sequence: the running request, and the waiting requests."""

    __slots__ = (
        "controls",
        "id",
        "is_begun",
        "is_draining",
        "is_open",
        "last_used",
        "owner",
        "running",
        "still_waiting",
        "waiting",
    )

    def __init__(
        self, owner: Owner, identifier: SequenceId, controls: dict[str, Tensor]
    ) -> None:
        self.owner = owner
        self.id = identifier
        self.controls = controls
        # Whether another request may follow the last one received.
        self.is_open = False
        # Whether its first request has run or was able to run.
        self.is_begun = False
        self.running: SequenceRequest | None = None
        self.waiting: deque[SequenceRequest] = deque()
        #: The number of `waiting` that are not given up.
        self.still_waiting = 0
        self.is_draining = False
        self.last_used = 0.0

    @property
    def is_busy(self) -> bool:
        return self.running is not None or bool(self.waiting)

    def forget_given_up(self) -> None:
        """Remove requests that are given up from the line.

        Of neighbours that start or end the sequence, one remains: what follows it must
        not continue the sequence before it.
        """
        kept: deque[SequenceRequest] = deque()
        for request in self.waiting:
            divides = request.start or request.end
            if not request.done or (divides and not (kept and kept[-1].done)):
                kept.append(request)
        self.waiting = kept

    def __repr__(self) -> str:
        return f"<LiveSequence {self.id!r}, {len(self.waiting)} waiting>"


class SequenceScheduler(StatefulScheduler):
    """The sequences of one version of a model. Belongs to the event loop's thread.

    `spec` has all tensors of the model; `visible` has those that requests see. Raises
    ValueError if the model lacks a tensor that `config` names. Files of initial states
    are in `folder` or below `model_folder`.

    A sequence belongs to the key that started it: requests with other keys cannot
    name it.
    """

    has_sequences = True

    def __init__(
        self,
        spec: ModelSpec,
        runner: Runner,
        config: SequenceConfig,
        folder: Path,
        model_folder: Path | None = None,
        *,
        instances: int = 1,
    ) -> None:
        self.config = config
        self._runner = runner
        states = States(spec, config.state, folder, model_folder)
        most, pause = config.max_state_bytes, config.max_idle
        self._memory = StateMemory[LiveSequence](states, most, "sequence", pause)
        free = config.max_active * instances if config.max_active else None
        self._slots: SequenceSlots[LiveSequence] = SequenceSlots(free, self._run_next)
        self._controls = {
            role: Control(spec, name, f"sequence.{role}")
            for role, name in config.controls.items()
        }
        hidden = {c.name for c in self._controls.values()} | states.initial.keys()
        super().__init__(spec.without(hidden, states.outputs))
        self._sequences: OrderedDict[tuple[Owner, SequenceId], LiveSequence] = (
            OrderedDict()
        )
        self._owned: Counter[Owner] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def is_open(self) -> bool:
        return bool(self._sequences)

    @property
    def waiting(self) -> int:
        """Return the requests that wait for the one before them in their sequence."""
        return sum(sequence.still_waiting for sequence in self._sequences.values())

    @property
    def example_parameters(self) -> Mapping[str, Any]:
        named = self._controls.get("correlation_id")
        return _NAMED_SEQUENCE if named is not None and named.is_text else _SEQUENCE

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> SequenceRequest:
        """Queue a request behind the others of its sequence; never blocks.

        Raises `InvalidRequest` for a request without a sequence, `QueueFull`, and the
        runner's errors.
        """
        parameters = request.parameters or {}
        start = _flag(parameters, "sequence_start")
        end = _flag(parameters, "sequence_end")
        model = self.visible.name
        if self.visible.is_batched and request.rows != 1:
            msg = (
                f"inference request to model '{model}' must specify batch-size 1 due "
                f"to requirements of sequence batcher, got {request.rows}"
            )
            raise InvalidRequest(msg)
        given = parameters.get("sequence_id")
        sequence = self._sequence(request.owner, given, start=start)
        if sequence.is_busy and sequence.still_waiting >= self.config.max_waiting:
            msg = (
                f"Exceeds maximum queue size: {sequence.still_waiting} requests of "
                f"sequence {sequence.id} of model '{model}' are already queued"
            )
            raise QueueFull(msg)
        if len(sequence.waiting) >= 2 * self.config.max_waiting:
            sequence.forget_given_up()
        mine = SequenceRequest(request, deadline, on_done, start=start, end=end)
        if sequence.is_busy or not self._may_run(sequence):
            sequence.is_open = not end
            sequence.waiting.append(mine)
            sequence.still_waiting += 1
            mine.on_given_up = partial(self._given_up, sequence)
        else:
            self._start(sequence, mine)
        return mine

    def _may_run(self, sequence: LiveSequence) -> bool:
        """Return whether a sequence has a slot; otherwise it waits for one."""
        if self._slots.acquire(sequence):
            return True
        self._touch(sequence)
        return False

    def _given_up(self, sequence: LiveSequence) -> None:
        """Forget a sequence that waits for a slot with no request left."""
        sequence.still_waiting -= 1
        if not sequence.still_waiting and self._slots.withdraw(sequence):
            sequence.waiting.clear()
            self._drop(sequence)

    def _drop(self, sequence: LiveSequence) -> None:
        """Forget an ended sequence, and give its slot to another one."""
        self._memory.forget(sequence)
        name = sequence.owner, sequence.id
        if self._sequences.get(name) is sequence:
            del self._sequences[name]
            count_down(self._owned, sequence.owner)
        self._slots.release(sequence)

    def _start(self, sequence: LiveSequence, mine: SequenceRequest) -> None:
        """Run a request immediately. A refused request leaves no trace."""
        was_open, sequence.is_open = sequence.is_open, not mine.end
        self._touch(sequence)
        try:
            self._run(sequence, mine)
        except BaseException:
            sequence.is_open = was_open
            if not was_open:
                self._drop(sequence)
            raise

    def _sequence(self, owner: Owner, value: object, *, start: bool) -> LiveSequence:
        """Return the sequence of a request; a new one if the request starts one."""
        model = self.visible.name
        identifier = _identifier(value)
        if not identifier:
            msg = (
                f"inference request to model '{model}' must specify a non-zero or "
                f"non-empty correlation ID"
            )
            raise InvalidRequest(msg)
        found = self._sequences.get((owner, identifier))
        if found is not None and (found.is_open or start):
            return found
        if not start:
            raise self._not_begun(identifier)
        self._check_share(owner)
        return LiveSequence(owner, identifier, _constant(self._controls, identifier))

    def _check_share(self, owner: Owner) -> None:
        """Raise `QueueFull` if `owner` may start no sequence now.

        A key may have as many sequences as are free for it. So some stay free for the
        next key, however many sequences one key starts.
        """
        most = self.config.max_sequences
        free = most - len(self._sequences)
        mine = self._owned[owner] if owner is not None else 0
        if free > mine:
            return
        model = self.visible.name
        if free <= 0:
            had = f"model '{model}' has {counted(most, 'sequence')}"
        else:
            had = (
                f"this key has {counted(mine, 'sequence')} of model '{model}', and "
                f"{free} more are free for all keys together"
            )
        msg = f"Exceeds maximum queue size: {had}, and max_sequences is {most}"
        raise QueueFull(msg, self.config.max_idle)

    def _not_begun(self, identifier: SequenceId) -> InvalidRequest:
        return InvalidRequest(
            f"inference request for sequence {identifier} to model "
            f"'{self.visible.name}' must specify the START flag on the first request "
            f"of the sequence"
        )

    def _touch(self, sequence: LiveSequence) -> None:
        """Mark the sequence as the last one used."""
        loop = asyncio.get_running_loop()
        sequence.last_used = loop.time()
        name = sequence.owner, sequence.id
        if name not in self._sequences:
            self._owned[sequence.owner] += 1
        self._sequences[name] = sequence
        self._sequences.move_to_end(name)
        self._arm(loop)

    # -- running

    def _run(self, sequence: LiveSequence, mine: SequenceRequest) -> None:
        """Submit a request to the runner. Raises the runner's errors."""
        before = self._memory.of(sequence)
        if mine.start:
            self._memory.begin(sequence)
            sequence.is_begun = True
        sequence.running = mine
        state = self._memory.of(sequence).tensors
        inputs = {**mine.inputs, **sequence.controls, **state}
        for role, on in (("start", mine.start), ("end", mine.end)):
            if role in self._controls:
                control = self._controls[role]
                inputs[control.name] = control.flag(on=on)
        try:
            mine.inner = self._runner.submit(
                inputs,
                deadline=mine.deadline,
                priority=mine.priority,
                on_done=partial(self._done, sequence, mine),
            )
        except BaseException:
            sequence.running = None
            self._memory.keep(sequence, before)
            raise

    def _done(
        self, sequence: LiveSequence, mine: SequenceRequest, inner: Submitted
    ) -> None:
        sequence.running = None
        error: Exception | None = inner.error
        try:
            mine.queue_ns, mine.compute_ns = inner.queue_ns, inner.compute_ns
            mine.batch_rows, mine.device_id = inner.batch_rows, inner.device_id
            if error is None:
                if not mine.end:
                    self._memory.go_on(sequence, inner.outputs)
                mine.outputs = inner.outputs
        except Exception as raised:
            error = raised
        # Each step runs even if the one before it raises, because others wait behind
        # it.
        with contextlib.ExitStack() as steps:
            steps.callback(self._run_next, sequence)
            steps.callback(mine.resolve, error)
            steps.callback(self._settle, sequence, mine)

    def _settle(self, sequence: LiveSequence, mine: SequenceRequest) -> None:
        """Update the sequence after a request has ended, successfully or not."""
        if mine.end:
            self._memory.forget(sequence)
            sequence.is_begun = False
        if sequence.waiting or (sequence.is_open and sequence.is_begun):
            self._touch(sequence)
        else:
            self._drop(sequence)

    def _run_next(self, sequence: LiveSequence) -> None:
        if sequence.is_draining:
            return  # a request that ended immediately called this again
        sequence.is_draining = True
        try:
            while sequence.waiting and sequence.running is None:
                mine = sequence.waiting.popleft()
                if not mine.done:  # not cancelled while it waited
                    sequence.still_waiting -= 1
                    mine.on_given_up = None
                    try:
                        if not (mine.start or sequence.is_begun):
                            raise self._not_begun(sequence.id)
                        self._run(sequence, mine)
                        continue
                    except Exception as error:
                        mine.resolve(error)
                if mine.start:  # what follows must not continue an earlier sequence
                    sequence.is_begun = False
                self._settle(sequence, mine)
        finally:
            sequence.is_draining = False

    # -- idle sequences

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            return  # a second timer would run forever, too
        oldest = next(iter(self._sequences.values()))
        # The timer must not refer to this object, so that an unloaded model need not
        # wait for it.
        self._timer = loop.call_at(
            oldest.last_used + self.config.max_idle, _expire, weakref.ref(self)
        )

    def expire(self) -> None:
        """End the sequences that have been idle for too long."""
        self._timer = None
        loop = asyncio.get_running_loop()
        until = loop.time() - self.config.max_idle
        while self._sequences:
            oldest = next(iter(self._sequences.values()))
            if oldest.last_used > until:
                self._arm(loop)
                return
            if oldest.is_busy:
                self._touch(oldest)
            else:
                self._drop(oldest)

    def __repr__(self) -> str:
        return f"<SequenceScheduler {self.visible.name} {len(self)} sequences>"


def _expire(reference: weakref.ref[SequenceScheduler]) -> None:
    scheduler = reference()
    if scheduler is not None:
        scheduler.expire()


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{name}' must be true or false, got {value!r:.80}")
    return value


def _identifier(value: object) -> SequenceId:
    """Return the identifier of a sequence; 0 if the request names none."""
    if value is None:
        return 0
    if isinstance(value, str):
        if len(value.encode("utf-8", "replace")) <= _MAX_ID_BYTES:
            return value
    elif type(value) is int and 0 <= value < 1 << 64:
        return value
    msg = (
        f"'sequence_id' must be an unsigned integer of 64 bits or a string of at most "
        f"{_MAX_ID_BYTES} bytes, got {value!r:.80}"
    )
    raise InvalidRequest(msg)


def _constant(
    controls: Mapping[str, Control], identifier: SequenceId
) -> dict[str, Tensor]:
    """Return the controls that are the same in all requests of a sequence."""
    constant = {}
    for role, control in controls.items():
        if role == "correlation_id":
            constant[control.name] = _id_tensor(control, identifier)
        elif role == "ready":
            constant[control.name] = control.flag(on=True)
    return constant


def _id_tensor(control: Control, identifier: SequenceId) -> Tensor:
    """Return the correlation id in the model's type, a number or a string."""
    value = identifier
    if control.is_text:
        value = str(identifier)
    elif isinstance(identifier, str) and identifier.isascii() and identifier.isdigit():
        value = int(identifier)
    try:
        return control.tensor(value)
    except ValueError as e:
        msg = f"'sequence_id' of this model must be {e}, got {identifier!r:.80}"
        raise InvalidRequest(msg) from None
