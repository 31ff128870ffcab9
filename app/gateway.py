"""`Gateway`: everything that lives as long as the server does, started and ended once.

It knows no routes. Routes and the infer path call it. The gateway starts while HTTP is
up: it attaches devices and loads models. Readiness says what is still missing.
`app/assembly.py` makes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.http.open_connections import OpenConnections
from app.http.tls import Certificate
from app.observe.journal import Journal
from app.observe.log import LogControl, lines_dropped
from app.observe.machine import BusyShares, Processors
from app.observe.metrics import MetricsRegistry
from app.observe.processes import OwnNumbers
from app.observe.tracing import Tracing
from app.other_processes import OtherProcesses
from app.pools import Pools
from app.reloading import Reloading
from app.repository.compilers import CompileCache
from app.repository.control.folder_polls import FolderPolls
from app.repository.control.model_control import ModelControl
from app.repository.control.uploads import Uploads
from app.repository.devices import GatewayDevices
from app.repository.memory_budget import MemoryBudget
from app.repository.on_demand import OnDemandLoader
from app.repository.readiness import Readiness, readiness_of
from app.repository.records import ModelRecords
from app.serving.calls.calls_plugin import ModelCalls
from app.serving.keys import Keys
from app.serving.table import ModelTable
from app.serving.transfer_memory import TransferMemory
from app.settings import Settings
from app.stage import Phase, Stage
from engine import EngineError

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class Gateway:
    """The devices, the models, the numbers, and the state of one server.

    It belongs to one event loop, and every method is for the loop's thread unless it
    says otherwise. `on_started` is called when everything is attached and loaded,
    `on_failed` with the reason if that fails. `others` represents the server's other
    processes. `connections` and `certificate` are those of the server.
    """

    settings: Settings
    stage: Stage
    keys: Keys
    certificate: Certificate | None
    # the models
    records: ModelRecords
    table: ModelTable
    budget: MemoryBudget
    control: ModelControl
    polls: FolderPolls | None
    on_demand: OnDemandLoader
    calls: ModelCalls | None
    # what they need
    devices: GatewayDevices
    cache: CompileCache
    uploads: Uploads
    pools: Pools
    transfers: TransferMemory
    connections: OpenConnections
    others: OtherProcesses
    # what is seen of it
    metrics: MetricsRegistry
    journal: Journal
    tracing: Tracing
    logging: LogControl
    reloading: Reloading
    on_started: Callable[[Gateway], None]
    on_failed: Callable[[Exception], None]
    processors: Processors = field(default_factory=Processors)
    devices_busy: BusyShares[str] = field(default_factory=BusyShares)
    models_busy: BusyShares[int] = field(default_factory=BusyShares)
    started_at: float = field(default_factory=time.time)
    load_seconds: float = field(default=0.0, init=False)
    _start: asyncio.Task[None] | None = field(default=None, init=False)

    def own(self) -> OwnNumbers:
        """Return the numbers that all connection-taking processes of the server report
        about themselves.
        """
        spans = self.journal.spans
        dropped = 0 if spans is None else spans.dropped
        mine = OwnNumbers(self.connections.count()[0], lines_dropped(), dropped)
        numbers = zip(*(mine, *self.others.own()), strict=True)
        return OwnNumbers(*map(sum, numbers))

    def count_unfinished(self) -> int:
        """Return the number of other unanswered requests of any kind, including
        requests of workers.
        """
        in_models = sum(model.pending for model in self.metrics.models())
        # The request that asks for the number is subtracted.
        return max(in_models, self.connections.unfinished() - 1)

    def readiness(self) -> Readiness:
        """Return the readiness. It names models only on a server without keys."""
        return readiness_of(
            self.stage,
            self.records,
            is_strict=self.settings.strict_readiness,
            names_models=self.keys.path is None,
        )

    async def whole_journal(self) -> Journal:
        """Return the last requests of all processes of the server."""
        told = await self.others.journals()
        if not told:
            return self.journal
        return self.journal.with_those(told, self.metrics.model)

    # -- its life

    def start(self) -> None:
        """Start attaching and loading in the background."""
        self.reloading.start()
        self._start = asyncio.create_task(self._run_start())

    async def _run_start(self) -> None:
        begin = time.monotonic()
        try:
            self.stage.enter(Phase.WAITING)
            await self.pools.device.run(self.devices.attach)
            self.devices.watch()
            if self.calls is not None:
                self.calls.open()
            self.stage.enter(Phase.LOADING)
            await self.control.start()
            if self.polls is not None:
                self.polls.start()
        except (EngineError, OSError) as e:
            self.stage.enter(Phase.FAILED)
            self.on_failed(e)
            return
        except Exception as e:
            logger.exception("failed to start")
            self.stage.enter(Phase.FAILED)
            self.on_failed(e)
            return
        self.load_seconds = time.monotonic() - begin
        if not self.stage.is_ending:
            self.stage.enter(Phase.SERVING)
            self.on_started(self)

    async def wait_started(self) -> None:
        """Return when everything is attached and loaded, or has failed."""
        if self._start is not None:
            await asyncio.wait([self._start])

    def drain(self) -> None:
        """Stop being ready but still answer requests.

        Clients should go elsewhere. The process is ended later.
        """
        if not self.stage.is_drained:
            logger.info(
                "draining: the server is no longer ready; send a signal to end it"
            )
        self.stage.drain()
        self.others.drain()

    def begin_drain(self) -> None:
        """Stop being ready. May be called from a signal handler."""
        self.stage.enter(Phase.ENDING)
        # Models that are loading now are no longer useful, and shutdown would wait for
        # their requests.
        self.control.begin_end()
        self.cache.close()

    async def abort(self) -> None:
        """Fail every request in flight: the device processes end now."""
        # Requests are resolved in this thread, so the devices are closed here.
        self.devices.close()

    async def stop(self) -> None:
        """Unload everything and detach the devices."""
        self.begin_drain()
        if self._start is not None:
            self._start.cancel()
        self.reloading.stop()
        if self.polls is not None:
            self.polls.stop()
        self.control.stop()
        self.on_demand.close()
        await self.control.close()
        if self.calls is not None:
            self.calls.close()
        self.devices.unwatch()
        await self.pools.device.run(self.devices.close)
        self.uploads.close()
        self.pools.close()
        self.tracing.close()
        self.journal.write_gathered()
        if self.journal.spans is not None:
            await asyncio.to_thread(self.journal.spans.close)
        if self.table.regions is not None:
            self.table.regions.unregister()

    def __repr__(self) -> str:
        return f"<Gateway {self.stage.phase} {self.records!r} {self.devices!r}>"
