"""`Gateway`: everything that lives as long as the server does, started and ended once.

It knows no routes. Routes and the infer path call it. The gateway starts while HTTP is
up: it attaches devices and loads models. Readiness says what is still missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from app.background import DaemonPool
from app.codec.shared_memory import RegionTable
from app.config.config_keys import KeyProblem
from app.config.file_modes import exposure_of
from app.config.log_config import read_log_config
from app.http.open_connections import OpenConnections
from app.http.tls import Certificate
from app.observe.access_log import AccessLog
from app.observe.answers import OTHER
from app.observe.history import History
from app.observe.journal import Journal
from app.observe.log import LogControl, LogSettings, lines_dropped
from app.observe.machine import BusyShares, Processors
from app.observe.metrics import MetricsRegistry, ModelMetrics
from app.observe.shared_counters import OwnNumbers
from app.observe.spans import spans_of_environment
from app.observe.tracing import NoTracing, Tracing
from app.other_processes import OtherProcesses
from app.plugins import TRACERS, plugins
from app.repository.assembly import TimeLimits
from app.repository.compile_cache import CompileCache
from app.repository.devices import GatewayDevices
from app.repository.loader import ModelLoader
from app.repository.memory_budget import MemoryBudget
from app.repository.model_control import ControlMode, ModelControl
from app.repository.model_life import State
from app.repository.model_sources import FetchOptions, RemoteCaches
from app.repository.on_demand import OnDemandLoader
from app.repository.places import ModelPlaces
from app.repository.repository import ModelRepository
from app.repository.uploads import Uploads
from app.serving.call_graph import CallGraph
from app.serving.keys import Keys
from app.serving.model_calls import ModelCalls
from app.serving.requester import Requesters
from app.serving.table import ModelTable
from app.serving.timeout_policy import TimeoutPolicy
from app.serving.transfer_memory import TransferMemory
from app.settings import Settings
from engine import EngineError, InvalidConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")
MakeOthers = Callable[[ModelTable, MetricsRegistry], OtherProcesses]

# The most threads for devices; they start as needed. They attach devices, ping each
# device and bring it back. No such job may wait for a device that hangs.
DEVICE_THREADS = 2048
# Seconds between checks of the key file.
KEYS_LOOK = 1.0
# Phases of a gateway before it serves.
_STARTING = {"starting", "waiting for a device", "loading models"}


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of the gateway, and the missing parts."""

    ready: bool
    reasons: list[str] = field(default_factory=list)
    loading: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class _Pools:
    """The threads of a gateway, in pools, so that slow work delays no other kind of
    work.

    Listing a folder does not wait for models that load. Loading does not wait for long
    compilations or downloads. Unloading waits for none of these.
    """

    def __init__(self, load_threads: int) -> None:
        self.device = DaemonPool(DEVICE_THREADS, "popgate-devices")
        self.load = DaemonPool(load_threads, "popgate-load")
        self.scan = DaemonPool(1, "popgate-scan")
        self.compile = DaemonPool(load_threads, "popgate-compile")
        self.unload = DaemonPool(load_threads, "popgate-unload")
        self.fetch = DaemonPool(load_threads, "popgate-fetch")
        self.all = (
            self.load, self.scan, self.compile, self.unload, self.fetch, self.device,
        )  # fmt: skip


class Gateway:
    """The devices, the models, the numbers, and the state of one server.

    It belongs to one event loop, and every method is for the loop's thread unless it
    says otherwise. `on_started` is called when everything is attached and loaded,
    `on_failed` with the reason if that fails. `others` makes the object that represents
    the server's other processes. `connections` and `certificate` are those of the
    server.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_started: Callable[[Gateway], None] = lambda gateway: None,
        on_failed: Callable[[Exception], None] = lambda error: None,
        others: MakeOthers = lambda table, metrics: OtherProcesses(),
        connections: OpenConnections | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        """Raise `engine.InvalidConfig` for a device specification or key file that
        cannot be read, and for named models that do not exist.
        """
        self.settings = settings
        self.connections = connections or OpenConnections()
        self._certificate = certificate
        self.metrics = MetricsRegistry(
            self._counted,
            keyless="" if settings.keys is None else OTHER,
            answered=lambda: self.others.answered(),
        )
        self.history = History(self.metrics)
        self.logging = LogControl(
            settings.log_level,
            settings.log_format,
            on_change=lambda log: self.others.log_changed(log),
        )
        self.tracing = _tracing(settings, lambda: self.table.renew_tracers())
        self._spans = spans_of_environment()
        access = AccessLog.of(settings.access_log, settings.workers)
        self.journal = Journal(access, self._spans)
        self.processors = Processors()
        self.devices_busy: BusyShares[str] = BusyShares()
        self.models_busy: BusyShares[int] = BusyShares()
        self.keys = _keys(settings)
        self.regions = _regions(settings)
        self.table = self._make_table()
        self.others = others(self.table, self.metrics)
        self.transfers = TransferMemory(
            settings.transfer_memory, self.others.bytes_held
        )
        self.started_at = time.time()
        self.load_seconds = 0.0
        self._on_started = on_started
        self._on_failed = on_failed
        self._pools = _Pools(settings.load_threads)
        self.devices = self._make_devices()
        self._cache = CompileCache(
            settings.cache_dir, settings.compile_timeout, settings.compile_memory
        )
        self.calls = self._make_calls()
        self.repository = self._make_repository()
        self._uploads = Uploads(settings.cache_dir / "uploads")
        self.control = self._make_control()
        self.on_demand = OnDemandLoader(self.repository)
        self._start: asyncio.Task[None] | None = None
        self._reload = asyncio.Event()
        self._when_reloaded: list[Callable[[], None]] = []
        self._watch: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._phase = "starting"
        self._drained = False
        #: Whether everything was attached and loaded once. Startup probes ask for this.
        self.has_started = False

    # -- other processes that run its models, and models that call others

    def _counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        self.calls.count()
        return self.others.counted(name, version)

    def own(self) -> OwnNumbers:
        """Return the numbers that all connection-taking processes of the server report
        about themselves.
        """
        spans = 0 if self._spans is None else self._spans.dropped
        mine = OwnNumbers(self.connections.count()[0], lines_dropped(), spans)
        numbers = zip(*(mine, *self.others.own()), strict=True)
        return OwnNumbers(*map(sum, numbers))

    def count_unfinished(self) -> int:
        """Return the number of other unanswered requests of any kind, including
        requests of workers.
        """
        in_models = sum(model.pending for model in self.metrics.models())
        # The request that asks for the number is subtracted.
        return max(in_models, self.connections.unfinished() - 1)

    def certificate_expires(self) -> float | None:
        """Return when the server's certificate expires, in seconds since 1970; None
        without one.
        """
        return None if self._certificate is None else self._certificate.expires

    def _model_changed(self, name: str) -> None:
        self.calls.changed(name)
        self.others.model_changed(name)

    def _device_is_back(self) -> None:
        self.calls.changed()
        self.others.device_is_back()

    async def _settled(self, leaving: Sequence[object]) -> None:
        await self.calls.settled(leaving)
        await self.others.settled(leaving)

    def _make_table(self) -> ModelTable:
        return ModelTable(
            self.settings.limits,
            regions=self.regions,
            tracer=self.tracing.tracer,
            absent=self,
            on_change=self._model_changed,
            keeps_parts=self._spans is not None,
            has_keys=self.settings.keys is not None,
        )

    def _make_calls(self) -> ModelCalls:
        timeout = self.settings.request_timeout
        return ModelCalls(
            self.table,
            CallGraph(lambda name: self.repository.needs_of(name)),
            Requesters(self.table, self.others),
            timeout,
            self.settings.shutdown_timeout + timeout,
        )

    def _make_devices(self) -> GatewayDevices:
        settings = self.settings
        return GatewayDevices(
            settings.devices,
            settings.device_wait_config,
            self._pools.device,
            ping_timeout=settings.device_timeout,
            threads=settings.threads or 0,
            event_loops=settings.workers,
            on_back=self._device_is_back,
            in_flight_elsewhere=self.others.in_flight_on,
        )

    def _make_repository(self) -> ModelRepository:
        settings, pools = self.settings, self._pools
        loader = ModelLoader(
            self.devices,
            self._cache,
            settings.max_body_size,
            TimeLimits(settings.load_timeout, settings.run_timeout),
            settings.allow_python,
            self.calls.attach,
            self.table.routes.claim,
        )
        return ModelRepository(
            places_of(settings),
            loader,
            pools.load,
            self.table,
            self.metrics,
            load_member=lambda name: self.control.load_member(name),
            drain_timeout=settings.shutdown_timeout,
            budget=MemoryBudget(settings.model_memory),
            compile_pool=pools.compile,
            unload_pool=pools.unload,
            settled=self._settled,
            newcomer=ControlMode(settings.model_control_mode).newcomer,
        )

    def _make_control(self) -> ModelControl:
        settings, pools = self.settings, self._pools
        return ModelControl(
            self.repository,
            pools.load,
            pools.scan,
            ControlMode(settings.model_control_mode),
            startup=settings.load_model,
            poll_seconds=settings.repository_poll_secs,
            follows=settings.reload,
            lazily=settings.lazy,
            uploads=self._uploads,
            fetch_pool=pools.fetch,
        )

    @property
    def is_draining(self) -> bool:
        return self._phase == "shutting down"

    @property
    def is_busy(self) -> bool:
        """Return whether a thread is still busy. Exit should not wait for it."""
        return any(pool.is_busy for pool in self._pools.all)

    def start(self) -> None:
        """Start attaching and loading in the background."""
        self._read_log_config()
        self._warn_of_modes()
        loop = asyncio.get_running_loop()
        self._start = loop.create_task(self._run_start())
        if not self.settings.no_pages:
            self._keeping = loop.create_task(self.history.keep())
        if self.keys.path is not None:
            self._watch = loop.create_task(self._watch_keys())

    def _warn_of_modes(self) -> None:
        """Warn of the files of secrets that other users can read or write."""
        settings = self.settings
        for option, path in (
            ("--keys", settings.keys),
            ("--tls-key", settings.tls_key or settings.tls_cert),
        ):
            why = "" if path is None else exposure_of(path)
            if why:
                msg = (
                    "%s (%s): %s; make it readable by the server's user alone: chmod "
                    "600"
                )
                logger.warning(msg, path, option, why)

    async def wait_started(self) -> None:
        """Return when everything is attached and loaded, or has failed."""
        if self._start is not None:
            await asyncio.wait([self._start])

    async def in_background(self, call: Callable[[], T]) -> T:
        """Run `call` in one of the threads that load models."""
        return await self._pools.load.run(call)

    def reload(self, when_done: Callable[[], None] = lambda: None) -> None:
        """Check now whether keys have changed, and read the file of log settings."""
        self._read_log_config()
        if self._watch is None:
            when_done()
            return
        self._when_reloaded.append(when_done)
        self._reload.set()

    def _read_log_config(self) -> None:
        """Read the log configuration. An unreadable or invalid file changes nothing."""
        path = self.settings.log_config
        if path is None:
            return
        try:
            config = read_log_config(path)
        except (OSError, KeyProblem) as e:
            logger.error("%s was not reloaded: %s", path, e)
            return
        level = config.log_level or self.settings.log_level
        self.logging.apply(
            replace(LogSettings.of_level(level), format=self.logging.settings.format)
        )
        access = config.access_log or self.settings.access_log
        self.journal.set_access(access)
        self.others.access_changed(access)

    @property
    def is_drained(self) -> bool:
        """Return whether `drain` was called."""
        return self._drained

    def drain(self) -> None:
        """Stop being ready but still answer requests.

        Clients should go elsewhere. The process is ended later.
        """
        if not self._drained:
            logger.info(
                "draining: the server is no longer ready; send a signal to end it"
            )
        self._drained = True
        self.others.drain()

    def begin_drain(self) -> None:
        """Stop being ready. May be called from a signal handler."""
        self._phase = "shutting down"
        # Models that are loading now are no longer useful, and shutdown would wait for
        # their requests.
        self.control.begin_end()
        self._cache.close()
        if self.repository.places.remote is not None:
            self.repository.places.remote.stop()

    async def abort(self) -> None:
        """Fail every request in flight: the device processes end now."""
        # Requests are resolved in this thread, so the devices are closed here.
        self.devices.close()

    async def stop(self) -> None:
        """Unload everything and detach the devices."""
        self.begin_drain()
        if self._start is not None:
            self._start.cancel()
        for task in (self._watch, self._keeping):
            if task is not None:
                task.cancel()
        self.control.stop()
        self.on_demand.close()
        await self.repository.save()
        self.repository.close()
        self.calls.close()
        self.devices.unwatch()
        await self._pools.device.run(self.devices.close)
        self._uploads.close()
        for pool in self._pools.all:
            pool.close()
        self.tracing.close()
        self.journal.write_gathered()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
        if self.regions is not None:
            self.regions.unregister()

    async def whole_journal(self) -> Journal:
        """Return the last requests of all processes of the server."""
        told = await self.others.journals()
        if not told:
            return self.journal
        return self.journal.with_those(told, self.metrics.model)

    def readiness(self) -> Readiness:
        """Return the readiness, for load balancers; cheap. It names models only on a
        server without keys, because the request needs no key.
        """
        is_open = self.keys.path is None
        reasons = []
        loading = self.repository.names_in(State.LOADING)
        failed = self.repository.problems()
        if self._phase != "serving":
            reasons.append(f"the gateway is {self._phase}")
        elif self._drained:
            reasons.append("the gateway is drained")
        lost = self.repository.without_replica()
        if lost:
            names = ", ".join(lost)
            which = f"; models: {names}" if is_open else ""
            reasons.append(f"devices are lost and being restarted{which}")
        serving = self.repository.names_in(State.READY, State.ON_DEMAND)
        if self._phase == "serving" and failed and not serving:
            reasons.append("no model could be loaded")
        elif failed and self.settings.strict_readiness:
            reasons.append("some models could not be loaded")
        if not is_open:
            return Readiness(not reasons, reasons, [], {})
        return Readiness(not reasons, reasons, loading, failed)

    # -- models that are not in the table

    def explain(self, name: str, version: str | None) -> str | None:
        """Return why a model or version is not served; None if it does not exist."""
        if self._phase != "serving" and not self.repository.models():
            return f"the gateway is {self._phase}"  # the repository has not been read
        return self.repository.explain(name, version)

    def is_to_come(self, name: str) -> bool:
        """Return whether the server is starting and may still load the model."""
        if self._phase not in _STARTING:
            return False
        record = self.repository.get(name)
        if record is None:
            return not self.repository.models()  # the repository has not been read
        return record.state is State.LOADING

    def offers(self, name: str, version: str | None) -> bool:
        """Return whether a request to the model would load it."""
        return self.on_demand.offers(name, version)

    async def ensure(
        self, name: str, version: str | None, policy: TimeoutPolicy
    ) -> None:
        """Load the model; raises as `OnDemandLoader.ensure` does."""
        await self.on_demand.ensure(name, version, policy)

    async def _watch_keys(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reload.wait(), KEYS_LOOK)
            self._reload.clear()
            done, self._when_reloaded = self._when_reloaded, []
            # Not in a thread that loads models, because the read could wait for loads.
            config = await asyncio.to_thread(self.keys.read_again)
            if config is not None:
                self.keys.take_over(config)
                self._warn_of_modes()
            for call in done:
                call()

    async def _run_start(self) -> None:
        begin = time.monotonic()
        try:
            self._phase = "waiting for a device"
            await self._pools.device.run(self.devices.attach)
            self.devices.watch()
            self.calls.open()
            self._phase = "loading models"
            await self.control.start()
        except (EngineError, OSError) as e:
            self._phase = "failed to start"
            self._on_failed(e)
            return
        except Exception as e:
            logger.exception("failed to start")
            self._phase = "failed to start"
            self._on_failed(e)
            return
        self.load_seconds = time.monotonic() - begin
        if not self.is_draining:
            self._phase = "serving"
            self.has_started = True
            self._on_started(self)

    def __repr__(self) -> str:
        return f"<Gateway {self._phase} {self.repository!r} {self.devices!r}>"


def places_of(settings: Settings) -> ModelPlaces:
    """Return the places of the models: the folder, unless only single models
    are named.
    """
    named_only = settings.model and "model_repository" not in settings.model_fields_set
    folder = None if named_only else settings.model_repository
    cache = settings.model_cache or settings.cache_dir / "models"
    options = FetchOptions(settings.model_download_limit, settings.allow_python)
    return ModelPlaces.of(folder, settings.model, RemoteCaches(cache, options))


def _tracing(settings: Settings, on_change: Callable[[], None]) -> Tracing:
    """Return the tracing of the first plugin that has one. Raises `InvalidConfig`."""
    offset = time.time_ns() - time.monotonic_ns()
    for make in plugins(TRACERS).values():
        tracing: Tracing = make(settings, offset, on_change)
        return tracing
    if settings.trace_file is not None:
        msg = "--trace-file: no plugin that writes traces is installed"
        raise InvalidConfig(msg)
    return NoTracing()


def _regions(settings: Settings) -> RegionTable | None:
    """Return the table of shared memory, if that is allowed."""
    if not settings.allow_shared_memory:
        return None
    return RegionTable(
        max_bytes=settings.shared_memory_limit,
        lease=settings.shared_memory_lease,
        prefix=settings.shared_memory_prefix,
        later=lambda seconds, call: asyncio.get_running_loop().call_later(
            seconds, call
        ),
    )


def _keys(settings: Settings) -> Keys:
    """Return the keys of the server. Raises `InvalidConfig`."""
    path, secret = settings.keys, settings.api_key
    try:
        key = None if secret is None else secret.get_secret_value()
        keys = Keys(path, key, shared=settings.workers > 1)
    except OSError as e:
        msg = f"--keys: cannot read {path}: {e.strerror or e}"
        raise InvalidConfig(msg) from None
    except KeyProblem as e:
        msg = f"--keys: {path}: {e}"
        raise InvalidConfig(msg) from None
    named = [k.config.name for k in keys.table.keys if k.config.certificate]
    if named and settings.tls_client_ca is None:
        msg = (
            f"--keys: {path}: key {named[0]!r} requires a client certificate; set "
            "--tls-client-ca so that the server requests one"
        )
        raise InvalidConfig(msg)
    return keys
