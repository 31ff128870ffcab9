"""A simulator of the request path: clients, rings and device processes in one thread.

The tested code is the product's own: the runners, channels and links of the clients,
and the scheduler and the replicas of the device processes. The processes, the clock and
the model's programs are simulated. A seed chooses what happens next: requests of every
kind, cancellations, deadlines, failing rows, clients that take no results, devices that
die and come back, models that are loaded again, jumps of the clock. These happen
between two batches and while a program runs. In some worlds the devices have a second
model, so large requests run in a second thread; the world decides which of the two
threads goes on. At the end every request has an answer, and each answer is checked.

`python -m bench.fuzzers.simulator 100000` runs so many seeds, a process on each core,
and prints what failed;
`python -m bench.fuzzers.simulator --seed 7` prints the events of one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bench.fuzzers.clock import patches, ruled_by
from bench.fuzzers.event_log import EventLog
from bench.fuzzers.seeds import run_seeds
from engine import (
    Cancelled,
    DataDesc,
    DeadlineExceeded,
    DeadlineUnreachable,
    DeviceLost,
    ExecutionFailed,
    InvalidInput,
    JoinedDevice,
    JoinedRunner,
    QueueFull,
    RunnerClosed,
    RunnerDescription,
    Tensor,
)
from engine.config import weighted
from engine.devices.device_state import DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.devices.request import Request
from engine.errors import EngineError
from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.model.ragged import RaggedPlan
from engine.runner import channel_rings, replica_lines
from engine.transport import bulk_copy
from engine.transport.bulk_copy import COPIED_AT_ONCE, BulkCopy
from engine.transport.channel import Channel, ChannelLayout
from engine.transport.control import A
from engine.transport.device_messages import (
    ChannelOpened,
    CloseChannel,
    Done,
    OpenChannel,
)
from engine.transport.link import Completions, Link
from engine.transport.messages import Message
from engine.transport.shared_memory import PAGE
from engine.worker import batch, large_runs
from engine.worker.batch import AnchorTable
from engine.worker.batching_policy import BatchingPolicy
from engine.worker.cancellation import terminate_if_cancelled
from engine.worker.connections import ClientProcess
from engine.worker.present_runs import runs_of
from engine.worker.ragged import RaggedReplica
from engine.worker.regrouping import RegroupingReplica
from engine.worker.replica import Replica, ReplicaParts
from engine.worker.scheduler import Scheduler
from popef_io import Anchor, DataType, TensorInfo, TensorType

#: Numbers in a row: so large that the rings are full before the queues are.
WIDTH = 32
SLOTS = 8
MOST_ROWS, MOST_OF_ONE = 8, 3
#: Nanoseconds.
MICROSECOND, MILLISECOND = 1_000, 1_000_000
#: Steps after which everything must have ended.
PATIENCE = 20_000
#: Ways in which requests become runs: rows of all requests; one request at a time; a
#: fixed number of rows; rows of the same width; rows of nearly the same width, padded.
KINDS = ("rows", "single", "regrouped", "shapes", "ragged")
#: In some worlds: bytes that a copying thread copies at once, and the fewest that it
#: copies.
BLOCK = 300
WIDTHS = (8, 28, WIDTH)
#: In some worlds: bytes of an output from which it is computed in its ring. All rows of
#: a run are one client's then, so there is one.
BOUND = 200
RAGGED = RaggedPlan((0.0,), ((1,),), max_tokens=4 * WIDTH, max_padding=0.5)
POISON = -1
REPLICAS = {"regrouped": RegroupingReplica, "ragged": RaggedReplica}
_MAIN = (0,)
_ROWS = AnchorRows("x", 4), AnchorRows("y", 4)


class Died(BaseException):
    """A device process ends while it runs a program."""


class Copier:
    """Stands for the thread that copies large data.

    The world decides when it continues.
    """

    def __init__(self) -> None:
        self.copies: list[BulkCopy] = []
        self.blocks = 0

    def add(self, copy: BulkCopy) -> None:
        self.copies.append(copy)

    def go_on(self, chance: random.Random) -> None:
        """Copy one more block of a random copy, as if copies had different speeds."""
        if self.copies:
            copy = chance.choice(self.copies)
            self.blocks += not copy.is_over
            if not copy.step():
                self.copies.remove(copy)


class Threads:
    """Stands for the module `threading`: no thread starts."""

    class Thread:
        def __init__(self, **options: Any) -> None:
            self.start = bool


class SecondThread:
    """Stands for the module `time` where a run aside waits for room."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.monotonic = world.clock.monotonic

    def sleep(self, seconds: float) -> None:
        self._world.clock.now += int(seconds * 1000 * MILLISECOND)
        self._world.aside_waits()


@contextlib.contextmanager
def threads_of(world: World) -> Iterator[None]:
    """Let the world do the work of the threads that open channels or copy."""

    class Thread:
        def __init__(self, target: Any, args: Any, **options: Any) -> None:
            self.start = lambda: world.threads.append(partial(target, *args))

    with patches() as patch:
        patch(large_runs, "threading", Threads)
        patch(large_runs, "time", SecondThread(world))
        patch(replica_lines, "Thread", Thread)
        patch(channel_rings, "COPIER", world.copier)
        patch(channel_rings, "COPIED_AT_ONCE", world.copied_at_once)
        patch(bulk_copy, "BLOCK", BLOCK)
        if world.binds:
            patch(batch, "BIND_FROM", BOUND)
        yield


@dataclass
class Options:
    """Stands for the options of a run."""

    terminate: bool = False


class Program:
    """Stands for an executor: `y = 3 x + 1`. It fails if a row is poisoned."""

    def __init__(self, world: World, process: DeviceProcess, model: str) -> None:
        self._world, self._process, self._model = world, process, model

    def new_options(self) -> Options:
        return Options()

    def run(self, main: Sequence[int], batch: Any, options: Options) -> None:
        given = np.array(batch.read("x"))
        self._world.run_began(self._process, self._model, given)
        self._world.meanwhile(self._process)
        if options.terminate:
            raise Cancelled("the run was ended")
        if (given == POISON).any():
            raise ExecutionFailed("a row is poisoned")
        value = (3 * given + 1).astype(self._world.output_data.numpy_dtype)
        # As ONNX Runtime does, it computes large outputs where they are read.
        memory = batch.output_memory("y", value.shape, value.dtype)
        if memory is not None:
            memory[...] = value
            value = memory
        batch.write("y", value)

    def close(self) -> None:
        pass


class Waits:
    """Stands for the poller of a scheduler that waits until clients take results."""

    def __init__(self, world: World, wake_fd: int) -> None:
        self._world, self._wake_fd = world, wake_fd

    def poll(self, milliseconds: float) -> bool:
        self._world.clock.now += int(milliseconds * MILLISECOND)
        self._world.take_results()
        os.eventfd_write(self._wake_fd, 1)
        return True


class WatchedCompletions(Completions):
    """Completions of a link, which only the thread that schedules may put there."""

    def __init__(self, link: Link, process: DeviceProcess) -> None:
        super().__init__(link.view)
        self._process = process

    def put(self, *completion: Any, **more: Any) -> bool:
        self._process.expect_scheduling()
        return super().put(*completion, **more)


class DeviceProcess:
    """A device process: its scheduler, with one replica of each model.

    Of its two threads, either one that runs a program lets the other go on meanwhile.
    """

    def __init__(self, world: World, device_id: str) -> None:
        self.id = device_id
        self.lives = True
        self._world = world
        #: Whether the thread that schedules, and the second thread, are in a step; and
        #: whether the second one is the one that goes on now.
        self.schedules = self.is_aside = self._second_acts = False
        #: Whether nothing else happens until the run aside has ended.
        self.is_settling = False
        self.scheduler = scheduler = Scheduler()
        scheduler._poller = Waits(world, scheduler.wake_fd)  # type: ignore[assignment]
        anchors = [
            Anchor(name, name, TensorInfo((-1, -1), data), kind)
            for name, data, kind in (
                ("x", DataType.S64, TensorType.INPUT),
                ("y", world.output_data, TensorType.OUTPUT),
            )
        ]
        kind = REPLICAS.get(world.kind, Replica)
        nothing: Any = None
        self.replicas: dict[str, Replica] = {}
        for model in world.models:
            executor: Any = Program(world, self, model)
            number = world.next_number()
            parts = ReplicaParts(
                number,
                model,
                executor,
                _MAIN,
                AnchorTable((anchors[0],), (anchors[1],), nothing),
                world.plan,
                world.policy,
                scheduler.wait_room,
            )
            self.replicas[model] = kind(parts)
            scheduler.connections.add_replica(number, self.replicas[model])
        self._numbers = itertools.count(1)

    def connect(self, link: Link, result_fd: int) -> ClientProcess:
        number = next(self._numbers)
        theirs = Link.attach(os.dup(link.memory.fd))
        theirs.completions = WatchedCompletions(theirs, self)
        link.memory.detach_fd()
        client = ClientProcess(number, theirs, os.dup(result_fd), number)
        self.scheduler.connections.add_client(client)
        return client

    def obey(self, client: ClientProcess, message: Message, fds: Sequence[int]) -> int:
        """Obey a message that opens or closes a channel, as a device does between
        batches.
        """
        number = next(self._numbers)
        connections = self.scheduler.connections
        if isinstance(message, CloseChannel):
            close = connections.close_channel
            self.command(partial(close, client.number, message.channel))
            return 0
        assert isinstance(message, OpenChannel)
        channel = Channel.attach(
            os.dup(fds[0]), ChannelLayout.from_message(message.layout)
        )
        line = message.priority, message.weight, message.lane
        add = connections.add_channel
        self.command(
            partial(add, number, channel, client.number, message.replica, *line)
        )
        return number

    def turn(self) -> int:
        """Let the process do one thing; return the nanoseconds it would wait for the
        next.
        """
        scheduler = self.scheduler
        before, self._second_acts = self._second_acts, False
        self.schedules = True
        scheduler._drain()
        wait = scheduler._step() if scheduler._ready else -1
        self.schedules = False
        self._second_acts = before
        return 0 if wait < 0 and self.has_aside else wait

    def take_commands(self) -> None:
        """Let the thread that schedules take what came meanwhile."""
        self._second_acts = False
        self.scheduler._drain()
        self._second_acts = self.is_aside

    @property
    def has_aside(self) -> bool:
        """Return whether a replica is aside."""
        return self.scheduler._large.replica is not None

    def run_aside(self) -> None:
        """Let the second thread run its next batch, if there is one."""
        if self.scheduler._large.is_due:
            self.is_aside = self._second_acts = True
            assert self.scheduler._large.run_next()
            self.is_aside = self._second_acts = False

    def expect_scheduling(self) -> None:
        """Add a fault if the second thread does what is not its own."""
        self._world.expect(not self._second_acts, f"{self.id}: the wrong thread acts")

    def command(self, call: Callable[[], object]) -> None:
        """Pass a command to the thread that schedules, and wait until it has run."""
        done: list[object] = []

        def run() -> None:
            self._world.expect(not self.has_aside, "a command runs beside a run")
            done.append(call())

        self.scheduler.commands.do(run)
        self.is_settling = True
        while not done:
            self.scheduler._drain()
            self.run_aside()
        self.is_settling = False

    def end_cancelled(self) -> None:
        """End the runs of cancelled requests only."""
        for running in runs_of(self.scheduler.at_work()) if self.lives else ():
            terminate_if_cancelled(running)

    def close(self) -> None:
        self.lives = False
        for client in self.scheduler.clients.values():
            for channel, _ in client.channels.values():
                channel.channel.close()
            client.close()
        os.close(self.scheduler.wake_fd)


class Connected:
    """Stands for a connection to a device process."""

    def __init__(self, process: DeviceProcess, result_fd: int) -> None:
        self._process = process
        self.link = Link.create()
        self.client = process.connect(self.link, result_fd)
        self.number = self.client.number
        self.wake_fd = process.scheduler.wake_fd

    def wake(self) -> None:
        pass

    def notify_cancelled(self) -> None:
        self._process.end_cancelled()

    def fault_report(self) -> None:
        return None

    def close(self) -> None:
        self.link.close()


class SimulatedDevice(JoinedDevice):
    """A device from a client's view; its process is in this thread."""

    def __init__(self, process: DeviceProcess) -> None:
        LinkedDevice.__init__(self, process.id, spin_us=0)
        self.process = process
        self._on_lost = []
        self._why = "its process died"
        self.connected = Connected(process, self._result_fd)
        self.connect(self.connected)  # type: ignore[arg-type]
        self.adopt()

    def call(
        self,
        message: Message,
        kind: type[A],
        fds: Sequence[int] = (),
        timeout: float | None = None,
    ) -> A:
        if self.state is not DeviceState.READY:
            raise DeviceLost(f"device {self.id} was lost")
        number = self.process.obey(self.connected.client, message, fds)
        answer = ChannelOpened(number) if isinstance(message, OpenChannel) else Done()
        assert isinstance(answer, kind)
        return answer

    def close(self) -> None:
        self.state = DeviceState.CLOSED
        for channel in self.channels.all:
            channel.close()
        self.channels.by_number.clear()
        self._drop_link()
        os.close(self._result_fd)


@dataclass
class Asked:
    """A request, with all that is needed to judge its answer."""

    request: Request
    x: np.ndarray[Any, Any]
    line: int
    deadline: int
    #: How often its client had lost a device or closed a runner before.
    ends_before: int
    answers: int = 0
    was_cancelled: bool = False

    @property
    def is_poisoned(self) -> bool:
        return bool((self.x == POISON).any())


@dataclass
class Client:
    """A client process: its devices and its runners. `current` take requests."""

    devices: dict[str, SimulatedDevice] = field(default_factory=dict)
    runners: list[JoinedRunner] = field(default_factory=list)
    current: dict[str, JoinedRunner] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    #: Number of the last successful request of each line.
    last: dict[int, int] = field(default_factory=dict)
    lines: list[object] = field(default_factory=list)
    lost: int = 0
    closed: int = 0
    is_stalled: bool = False


class World(EventLog):
    """Two clients of one or two models on one or two devices. A seed decides what
    happens.
    """

    def __init__(self, seed: int, events: int = 60, models: int = 0) -> None:
        super().__init__()
        self.random = chance = random.Random(seed)
        self._events = events
        self.kind = chance.choice(KINDS)
        self.plan = BatchPlan(
            0,
            4 if self.kind == "regrouped" else 0,
            4 if self.kind == "regrouped" else 0,
            0 if self.kind == "single" else MOST_ROWS,
            _ROWS[:1],
            _ROWS[1:],
            RAGGED if self.kind == "ragged" else None,
        )
        self.binds = random.Random(f"{seed} bound").random() < 0.3
        widths = WIDTHS if self.kind in ("shapes", "ragged") else (WIDTH,)
        # If it binds, rows do not end where the next record begins.
        self.widths = [width - self.binds for width in widths]
        self.output_data = DataType.S32 if self.binds else DataType.S64
        delay = chance.choice((0, 0, 50 * MICROSECOND, MILLISECOND))
        self.policy = BatchingPolicy(
            max_rows=self.plan.max_units,
            delay_ns=delay,
            same_shapes=self.kind == "shapes",
            max_tokens=RAGGED.max_tokens if self.kind == "ragged" else 0,
            preferred=chance.choice(((), (), (4,), (2, 4))) if delay else (),
            fill_batch_ns=delay,
            fill_run_ns=delay,
            drops_cancelled=chance.random() < 0.5,
            look_ahead=chance.choice((-1, 0, 1)),
        )
        self.title = f"{self.kind}, {self.policy}"
        self.levels = chance.choice((0, 0, 2))
        self.is_weighted = chance.random() < 0.2
        # A choice of its own, so that a seed of one model stays what it was.
        self.models = ("m", "n")[
            : models or random.Random(f"{seed} models").choice((1, 2))
        ]
        self._numbers = itertools.count(1)
        self.copier = Copier()
        self.copied_at_once = chance.choice((COPIED_AT_ONCE, COPIED_AT_ONCE, BLOCK))
        if len(self.models) > 1:
            self.copied_at_once = BLOCK  # so some requests are large
        self._is_running = False
        #: The rows of large requests.
        self.large: set[int] = set()
        #: Calls of other threads, which run between two batches.
        self.threads: list[Callable[[], None]] = []
        count = chance.choice((1, 2, 2))
        self.processes = {f"d{n}": self._start(f"d{n}") for n in range(count)}
        self.clients = [Client() for _ in range(1 if self.binds else 2)]
        with threads_of(self):
            for client in self.clients:
                self._join(client)

    # -- what there is

    def next_number(self) -> int:
        return next(self._numbers)

    def _start(self, device_id: str) -> DeviceProcess:
        return DeviceProcess(self, device_id)

    def _join(self, client: Client) -> None:
        """Let a client use the loaded models, with runners of its own."""
        for key, process in self.processes.items():
            device = client.devices.get(key)
            if device is None or device.process is not process:
                if device is not None:
                    device.close()
                client.devices[key] = SimulatedDevice(process)
        for model in self.models:
            runner = JoinedRunner(self._describe(model), client.devices)
            client.current[model] = runner
            client.runners.append(runner)

    def _describe(self, model: str) -> RunnerDescription:
        desc = DataDesc("x", (-1, -1), DataType.S64)
        return RunnerDescription(
            model,
            (desc,),
            (DataDesc("y", (-1, -1), self.output_data),),
            self.plan,
            ChannelLayout(SLOTS, (PAGE,), (PAGE,)),
            max_queue_size=24,
            priority_levels=self.levels,
            default_level=self.levels,
            moves=True,
            replicas=tuple(
                (k, p.replicas[model].number) for k, p in self.processes.items()
            ),
        )

    # -- what happens

    def run(self) -> list[str]:
        """Run the world to its end; return the faults."""
        with ruled_by(self.clock, "engine"), threads_of(self):
            try:
                for _ in range(self._events):
                    self._catch_up()
                    self._happen()
                self._settle()
                self.counts["copied"] = self.copier.blocks
                self._check()
            finally:
                self._close()
        return self.faults

    def _catch_up(self) -> None:
        """Run the calls of other threads."""
        while self.threads:
            self.threads.pop(0)()

    def _happen(self) -> None:
        self.copier.go_on(self.random)
        actions = (self._arrive, self._turn, self._poll, self._cancel, self._jump)
        rare = (self._expire, self._kill, self._reload, self._stall, self._abscond)
        weights = (9, 9, 6, 2, 3, 1, 0.3, 0.2, 0.3, 0.1)
        (action,) = self.random.choices((*actions, *rare), weights)
        action()

    def meanwhile(self, process: DeviceProcess) -> None:
        """Let clients and the other thread act while a program runs; its process may
        die.
        """
        if process.is_settling:
            return
        self.clock.now += self.random.choice((5, 50, 500, 5_000)) * MICROSECOND
        before, self._is_running = self._is_running, True
        for _ in range(self.random.choice((0, 0, 1, 3))):
            self.copier.go_on(self.random)
            if process.has_aside and self.random.random() < 0.5:
                self._other_thread(process)
            actions = (self._submit, self._poll, self._cancel, self._expire)
            more = (*actions, self._abscond)
            (action,) = self.random.choices(more, (6, 3, 3, 1, 0.1))
            action()
        self._is_running = before
        if self.random.random() < 0.01:
            raise Died

    def _other_thread(self, process: DeviceProcess) -> None:
        """Let that thread of a process go on which runs no program."""
        if not process.is_aside:
            process.run_aside()
        elif not process.schedules:
            process.turn()

    def aside_waits(self) -> None:
        """Let the others act while a run aside waits for room for its results."""
        self.take_results()
        for process in self.processes.values():
            if process.is_aside and not process.schedules:
                process.take_commands()

    def run_began(
        self, process: DeviceProcess, model: str, given: np.ndarray[Any, Any]
    ) -> None:
        large = process.scheduler._large.replica is process.replicas[model]
        self.say(f"{'aside' if large else 'run'} {process.id} {given[:, 0].tolist()}")
        beside = len(self.models) > 1 and not large
        behind = self.large & set(given[:, 0].tolist()) if beside else ()
        self.expect(not behind, f"rows {behind} of large requests hold up others")
        # The last request of a run may bring rows beyond the limit.
        most = MOST_ROWS + MOST_OF_ONE - 1
        self.expect(len(given) <= most, f"{len(given)} rows in a run")

    def _turn(self) -> None:
        process = self.random.choice(list(self.processes.values()))
        try:
            if process.has_aside and self.random.random() < 0.5:
                process.run_aside()
            wait = process.turn()
        except Died:
            self._end(process)
            return
        longest = max(self.policy.delay_ns, MILLISECOND)
        self.expect(wait <= longest, f"a device waits {wait} ns")

    def _arrive(self) -> None:
        """Submit a request, or as many as one run takes."""
        for _ in range(4 if self.binds else 1):
            self._submit()

    def _submit(self) -> None:
        client = self.random.choice(self.clients)
        if not client.current:
            return
        model = self.models[0]
        if len(self.models) > 1:
            model = self.random.choice(self.models)
        rows = self.random.choice((1, 1, 1, 2, MOST_OF_ONE))
        x = np.empty((rows, self.random.choice(self.widths)), np.int64)
        x[:] = np.array([next(self._numbers) for _ in range(rows)])[:, None]
        if self.random.random() < 0.05:
            x[self.random.randrange(rows)] = POISON
        deadline = 0
        if self.random.random() < 0.25:
            after = self.random.choice((10, 300, 10_000, 10_000_000))
            deadline = self.clock.now + after * MICROSECOND
        priority = line = self.random.randint(0, self.levels)
        if self.is_weighted and self.random.random() < 0.5:
            priority = weighted(line, self.random.choice((1, 3)), 1)
        if x.nbytes > BLOCK:
            self.large.update(set(x[:, 0].tolist()) - {POISON})
        asked: list[Asked] = []

        def done(request: Request) -> None:
            if asked:
                asked[0].answers += 1
                self._check_order(client, request)
            else:
                self.expect(False, f"{request} ends before it was queued")

        try:
            request = client.current[model].submit(
                {"x": Tensor.from_numpy(x)},
                deadline=deadline / 1e9 if deadline else None,
                on_done=done,
                priority=priority,
                delayed=self.random.random() < 0.8,
            )
        except (QueueFull, DeadlineUnreachable, DeviceLost) as error:
            self.say(f"refused {type(error).__name__}")
            return
        one = Asked(request, x, line, deadline, client.lost + client.closed)
        asked.append(one)
        client.asked.append(one)
        self.say(f"submit {request.number & 0xFFFF} {x[:, 0].tolist()}")

    def _check_order(self, client: Client, request: Request) -> None:
        """Check that results of one line come in the order of its requests."""
        if request.error is None and self.kind != "ragged":
            before = client.last.get(id(request.channel), 0)
            what = f"request {request.number & 0xFFFF} is behind a later one"
            self.expect(request.number > before, what)
            client.last[id(request.channel)] = request.number
            client.lines.append(request.channel)

    def _poll(self) -> None:
        client = self.random.choice(self.clients)
        if not client.is_stalled:
            self._take(client)

    def _take(self, client: Client) -> None:
        for device in client.devices.values():
            if device.state is DeviceState.READY:
                device.poll()
        current = client.current.values()
        for runner in [one for one in client.runners if one not in current]:
            # A channel is closed between two batches.
            if not runner.in_flight and not self._is_running:
                self._leave(client, runner)

    def take_results(self) -> None:
        """Let clients take results while a device waits for room."""
        for client in self.clients:
            if not client.is_stalled:
                for device in client.devices.values():
                    if device.state is DeviceState.READY:
                        device.poll()

    def _cancel(self) -> None:
        client = self.random.choice(self.clients)
        waiting = [one for one in client.asked[-20:] if not one.request.done]
        if waiting:
            one = self.random.choice(waiting)
            self.say(f"cancel {one.request.number & 0xFFFF}")
            one.was_cancelled = True
            one.request.cancel()

    def _expire(self) -> None:
        for client in self.clients:
            for device in client.devices.values():
                if device.state is DeviceState.READY:
                    device.expire()

    def _jump(self) -> None:
        self.clock.now += self.random.choice((1, 20, 1_000, 100_000)) * MICROSECOND

    def _stall(self) -> None:
        client = self.random.choice(self.clients)
        client.is_stalled = not client.is_stalled
        self.say(f"stalled {client.is_stalled}")

    def _kill(self) -> None:
        self._end(self.random.choice(list(self.processes.values())))

    def _end(self, process: DeviceProcess) -> None:
        """End a device process; clients notice, and use the one that follows it."""
        self.say(f"death {process.id}")
        for client in self.clients:
            client.lost += 1
            if process.id in client.devices:  # otherwise it has not connected yet
                client.devices[process.id].lose()
        process.close()
        self.processes[process.id] = self._start(process.id)
        for client in self.clients:
            self._join(client)

    def _reload(self) -> None:
        """Publish the model to a client again: its earlier runner gets no more
        requests.
        """
        client = self.random.choice(self.clients)
        self.say("reload")
        self._join(client)

    def _leave(self, client: Client, runner: JoinedRunner) -> None:
        client.runners.remove(runner)
        client.closed += 1
        runner.close()

    def _abscond(self) -> None:
        """End a client process and start another in its place."""
        number = self.random.randrange(len(self.clients))
        gone, self.clients[number] = self.clients[number], Client()
        self.say(f"client {number} dies")
        for device in gone.devices.values():
            device.connected.client.link.gone = True
            device.process.end_cancelled()
        self.threads += [
            partial(self._bury, gone),
            partial(self._join, self.clients[number]),
        ]

    def _bury(self, client: Client) -> None:
        for device in client.devices.values():
            if self.processes[device.id] is device.process:
                drop = device.process.scheduler.connections.drop_client
                device.process.command(partial(drop, device.connected.client))
            device.close()

    # -- the end

    def _settle(self) -> None:
        """Let everything that was begun end."""
        for client in self.clients:
            client.is_stalled = False
        for _ in range(PATIENCE):
            self._catch_up()
            self.copier.go_on(self.random)
            idle = True
            for process in list(self.processes.values()):
                idle = idle and not process.has_aside
                try:
                    process.run_aside()
                    wait = process.turn()
                except Died:
                    self._end(process)
                    wait = 0
                self.clock.now += max(0, wait)
                idle = idle and wait < 0
            for client in self.clients:
                self._take(client)
                idle = idle and not any(runner.in_flight for runner in client.runners)
            if idle:
                return
        self.expect(False, "requests are still in flight")

    def _check(self) -> None:
        for client in self.clients:
            for one in client.asked:
                self._judge(client, one)
            for runner in client.runners:
                for channel in runner.channels:
                    rows, moving = channel.admission.rows, channel._failover
                    self.expect(rows == 0, f"{channel}: {rows} rows")
                    kept = moving is not None and moving.kept
                    self.expect(not kept, f"{channel} keeps inputs")
                    if channel.usable:
                        rings = channel._writer.channel
                        free = rings.requests.write_available
                        self.expect(free == SLOTS, f"{channel}: {free} slots free")
                        for ring in rings.inputs:
                            self.expect(ring.write_available == SLOTS, f"{ring}")
            for device in client.devices.values():
                self.expect(device.in_flight == 0, f"{device}")
        for process in self.processes.values():
            for replica in process.replicas.values():
                for theirs in replica.channels:
                    self.expect(not theirs.is_aside, f"{theirs} is aside")
                    for ring in theirs.channel.outputs:
                        free = ring.write_available
                        self.expect(free == SLOTS, f"{ring} holds results")

    def _judge(self, client: Client, one: Asked) -> None:
        request, error = one.request, one.request.error
        name = f"request {request.number & 0xFFFF}"
        self.expect(one.answers == 1, f"{name} has {one.answers} answers")
        if not request.done:
            return
        if error is None:
            self.expect(not one.is_poisoned, f"{name} is poisoned and succeeds")
            y = request.outputs.get("y")
            right = y is not None and np.array_equal(y.numpy(), 3 * one.x + 1)
            self.expect(right, f"{name} succeeds with {y}")
            return
        lost = client.lost + client.closed > one.ends_before
        reasons: Mapping[type[EngineError], bool] = {
            Cancelled: one.was_cancelled,
            DeadlineExceeded: one.deadline > 0,
            DeviceLost: lost,
            RunnerClosed: lost,
            ExecutionFailed: one.is_poisoned
            or "did not read its results" in str(error),
            QueueFull: False,
            InvalidInput: False,
        }
        self.counts[type(error).__name__] += 1
        self.expect(reasons.get(type(error), False), f"{name} fails: {error!r}")

    def _close(self) -> None:
        for client in self.clients:
            for device in client.devices.values():
                device.close()
        for process in self.processes.values():
            process.close()


def simulate(seed: int, events: int = 60, models: int = 0) -> World:
    """Run one seed; return its world, whose `faults` say what was wrong. The seed
    chooses how many `models` there are if this is 0.
    """
    world = World(seed, events, models)
    world.run()
    return world


def main() -> int:
    return run_seeds(__doc__, simulate)[0]


if __name__ == "__main__":
    sys.exit(main())
