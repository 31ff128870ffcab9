"""`gateway_of`: a gateway of settings, each part made after the parts it needs."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.config.config_keys import KeyProblem
from app.gateway import Gateway
from app.http.open_connections import OpenConnections
from app.http.tls import Certificate
from app.observe.access_log import AccessLog
from app.observe.answers import OTHER
from app.observe.journal import Journal, span_recorder
from app.observe.log import LogControl
from app.observe.metrics import MetricsRegistry
from app.observe.tracing import Tracing
from app.other_processes import OtherProcesses
from app.plugins import REGIONS, TRACERS, first_plugin
from app.pools import Pools
from app.regions import Regions
from app.reloading import Reloading
from app.repository.assembly import TimeLimits
from app.repository.compilers import CompileCache, compiler
from app.repository.control.control_mode import ControlMode
from app.repository.control.folder_loads import FolderLoads
from app.repository.control.folder_polls import FolderPolls
from app.repository.control.model_control import ModelControl
from app.repository.control.remote_files import RemoteFiles, RemoteWatch
from app.repository.control.uploads import Uploads
from app.repository.devices import GatewayDevices
from app.repository.loader import ModelLoader
from app.repository.loading.ensemble_loader import EnsembleLoader, MissingModels
from app.repository.loading.eviction import Eviction
from app.repository.loading.version_loader import VersionLoader
from app.repository.memory_budget import MemoryBudget
from app.repository.model_sources import FetchOptions, RemoteCaches
from app.repository.on_demand import OnDemandLoader
from app.repository.places import ModelPlaces
from app.repository.records import ModelRecords
from app.repository.repository import ModelRepository
from app.repository.served_models import ServedModels
from app.serving.calls.calls_plugin import ModelCalls, make_model_calls
from app.serving.feeders import Feeders
from app.serving.keys import Keys
from app.serving.table import ModelTable
from app.serving.transfer_memory import TransferMemory
from app.settings import Settings
from app.stage import Stage
from engine import InvalidConfig

MakeOthers = Callable[[ModelTable, MetricsRegistry], OtherProcesses]

#: Seconds between two polls of the folder with `--reload`.
FOLLOW_SECONDS = 0.25


def gateway_of(
    settings: Settings,
    *,
    on_started: Callable[[Gateway], None] = lambda gateway: None,
    on_failed: Callable[[Exception], None] = lambda error: None,
    make_others: MakeOthers = lambda table, metrics: OtherProcesses(),
    connections: OpenConnections | None = None,
    certificate: Certificate | None = None,
) -> Gateway:
    """Return a gateway. `make_others` makes the link to other processes.

    Raises `engine.InvalidConfig` for a device specification or key file that cannot be
    read, and for named models that do not exist.
    """
    stage, pools, keys = Stage(), Pools(settings.load_threads), _keys(settings)
    mode = ControlMode(settings.model_control_mode)
    places = places_of(settings)
    records = ModelRecords(places, mode.not_loaded_message)
    on_demand = OnDemandLoader(stage, records)
    feeders = Feeders()
    metrics = MetricsRegistry(
        feeders.counted,
        keyless="" if settings.keys is None else OTHER,
        answered=feeders.answered,
    )
    access = AccessLog.of(settings.access_log, settings.workers)
    journal = Journal(access, span_recorder())
    tracing = _tracing(settings)
    table = ModelTable(
        settings.limits,
        regions=_regions(settings),
        tracer=tracing.tracer,
        absent=on_demand,
        on_change=feeders.model_changed,
        keeps_nested_calls=journal.spans is not None,
        has_keys=settings.keys is not None,
    )
    tracing.subscribe(table.renew_tracers)
    others = make_others(table, metrics)
    calls = _calls(settings, table, records, others)
    if calls is not None:
        feeders.add(calls)
    feeders.add(others)
    devices = GatewayDevices(
        settings,
        pools.device,
        on_back=table.all_changed,
        in_flight_elsewhere=others.in_flight_on,
    )
    log = LogControl(
        settings.log_level, settings.log_format, on_change=others.log_changed
    )
    cache = compiler().cache(
        settings.cache_dir, settings.compile_timeout, settings.compile_memory
    )
    uploads = Uploads(settings.cache_dir / "uploads")
    budget = MemoryBudget(settings.model_memory)
    control, polls = _control(
        settings, mode, pools, places, records, table, metrics, feeders, calls, devices,
        cache, budget, uploads,
    )  # fmt: skip
    return Gateway(
        settings=settings,
        stage=stage,
        keys=keys,
        certificate=certificate,
        records=records,
        table=table,
        budget=budget,
        control=control,
        polls=polls,
        on_demand=on_demand,
        calls=calls,
        devices=devices,
        cache=cache,
        uploads=uploads,
        pools=pools,
        transfers=TransferMemory(settings.transfer_memory, others.bytes_held),
        connections=connections or OpenConnections(),
        others=others,
        metrics=metrics,
        journal=journal,
        tracing=tracing,
        logging=log,
        reloading=Reloading(settings, keys, log, journal, others),
        on_started=on_started,
        on_failed=on_failed,
    )


def _calls(
    settings: Settings, table: ModelTable, records: ModelRecords, others: OtherProcesses
) -> ModelCalls | None:
    """Return what serves the calls of models to others; None without a plugin."""
    make, timeout = make_model_calls(), settings.request_timeout
    if make is None:
        return None
    leave_timeout = settings.shutdown_timeout + timeout
    return make(table, records.needs_of, others, timeout, leave_timeout)


def _control(
    settings: Settings,
    mode: ControlMode,
    pools: Pools,
    places: ModelPlaces,
    records: ModelRecords,
    table: ModelTable,
    metrics: MetricsRegistry,
    feeders: Feeders,
    calls: ModelCalls | None,
    devices: GatewayDevices,
    cache: CompileCache,
    budget: MemoryBudget,
    uploads: Uploads,
) -> tuple[ModelControl, FolderPolls | None]:
    """Return the control of the models, and the polls of their folder. Make all parts
    that load them.
    """
    missing = MissingModels()
    loader = ModelLoader(
        devices,
        cache,
        settings.max_body_size,
        TimeLimits(settings.load_timeout, settings.run_timeout),
        settings.allow_python,
        None if calls is None else calls.attach,
        table.routes.claim,
    )
    served = ServedModels(
        table, metrics, budget, pools.unload, settings.shutdown_timeout, feeders.release
    )
    versions = VersionLoader(
        places,
        loader,
        EnsembleLoader(records, table, missing),
        budget,
        Eviction(budget, records, metrics, served),
        served,
        pools.load,
        pools.compile,
    )
    repository = ModelRepository(records, versions, served)
    remote = RemoteFiles(records, places.remote, pools.load, pools.fetch)
    loads = FolderLoads(
        records, places, repository, remote, pools.load, lazily=settings.lazy
    )
    seconds = settings.repository_poll_secs
    does_poll = settings.reload or mode is ControlMode.POLL
    watch = RemoteWatch(remote, loads.follow_remote, polls=does_poll, seconds=seconds)
    polls = FolderPolls(
        records,
        repository,
        loads,
        watch,
        known_only=mode is ControlMode.EXPLICIT,
        seconds=FOLLOW_SECONDS if settings.reload else seconds,
    )
    control = ModelControl(
        records,
        places,
        repository,
        loads,
        watch,
        pools.load,
        pools.scan,
        mode,
        uploads,
        settings.load_model,
    )
    missing.register(control.load_member)
    return control, polls if does_poll else None


def places_of(settings: Settings) -> ModelPlaces:
    """Return the places of the models: the folder, unless only single models
    are named.
    """
    named_only = settings.model and "model_repository" not in settings.model_fields_set
    folder = None if named_only else settings.model_repository
    cache = settings.model_cache or settings.cache_dir / "models"
    options = FetchOptions(settings.model_download_limit, settings.allow_python)
    return ModelPlaces.of(folder, settings.model, RemoteCaches(cache, options))


def _tracing(settings: Settings) -> Tracing:
    """Return the tracing of the first plugin that has one. Raises `InvalidConfig`."""
    offset = time.time_ns() - time.monotonic_ns()
    if make := first_plugin(TRACERS):
        tracing: Tracing = make(settings, offset)
        return tracing
    if settings.trace_file is not None:
        raise InvalidConfig("--trace-file: no plugin that writes traces is installed")
    return Tracing()


def _regions(settings: Settings) -> Regions | None:
    """Return the shared memory that requests may name, if that is allowed.

    Raises `InvalidConfig` if no plugin has it.
    """
    if not settings.allow_shared_memory:
        return None
    if make := first_plugin(REGIONS):
        regions: Regions = make(settings)
        return regions
    msg = "--allow-shared-memory: no plugin that reads shared memory is installed"
    raise InvalidConfig(msg)


def _keys(settings: Settings) -> Keys:
    """Return the keys of the server. Raises `InvalidConfig`."""
    path, secret = settings.keys, settings.api_key
    try:
        key = None if secret is None else secret.get_secret_value()
        return Keys(
            path,
            key,
            shared=settings.workers > 1,
            has_certificates=settings.tls_client_ca is not None,
        )
    except OSError as e:
        raise InvalidConfig(f"--keys: cannot read {path}: {e.strerror or e}") from None
    except KeyProblem as e:
        raise InvalidConfig(f"--keys: {path}: {e}") from None
