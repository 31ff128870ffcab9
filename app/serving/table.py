"""Which model answers at which path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from app.codec import InferRequest, ModelCodec
from app.codec.shared_memory import RegionTable
from app.errors import RequestError, UnknownModelRun, VersionNotReady
from app.limits import Limits
from app.observe.metrics import ModelMetrics
from app.observe.tracing import Tracer
from app.serving.patience import Patience
from app.spec import ModelSpec
from engine import EngineError, Tensor

PREFIXES = ("/v1/models/", "/v2/models/")
_SUFFIX = "/infer"


def infer_path(name: str, version: int | str = 0) -> str:
    """Where requests to a model go, or to a version of it."""
    inner = f"/versions/{version}" if version else ""
    return f"{PREFIXES[0]}{name}{inner}{_SUFFIX}"


class Submitted(Protocol):
    """The part of `engine.Request` that the front uses."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def outputs(self) -> Mapping[str, Tensor]: ...
    @property
    def queue_ns(self) -> int: ...
    @property
    def compute_ns(self) -> int: ...
    @property
    def batch_rows(self) -> int: ...
    def abandon(self, error: EngineError) -> None: ...


class Runner(Protocol):
    """The part of `engine.ModelRunner` that the front uses.

    `on_done` is called once, in the event loop's thread: from within `submit`, from
    within `abandon`, or from the device's `poll`.
    """

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
    ) -> Submitted: ...


class OnDemand(Protocol):
    """Who loads a model when the first request to it comes (`on_demand.py`)."""

    def offers(self, name: str, version: str | None) -> bool: ...
    async def ensure(
        self, name: str, version: str | None, patience: Patience
    ) -> None: ...


#: Gets the outputs of one of several responses.
OnResponse: TypeAlias = Callable[[Mapping[str, Tensor]], None]


class RequestScheduler(Protocol):
    """What looks at a whole request before its tensors go to the runner."""

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> Submitted: ...


class ModelEntry:
    """A version of a model that takes requests.

    `timeout` is the longest that a request may take, in seconds, where neither the
    request nor its headers say so; None leaves it to the front. `level_timeouts` are
    those of priority levels that have their own. No request may take longer than
    `max_timeout`, or where that is None, than the longest of all these. While `ready`
    is False requests are answered with 503. With a `scheduler` requests go through
    that, and it gives their tensors to the runner.
    `tracer` samples the requests, if anything does. `regions` is the shared memory
    that they may name, if it is allowed.
    """

    __slots__ = (
        "_codec",
        "level_timeouts",
        "longest_timeout",
        "max_timeout",
        "ready",
        "regions",
        "runner",
        "scheduler",
        "spec",
        "stats",
        "timeout",
        "tracer",
    )

    def __init__(
        self,
        spec: ModelSpec,
        runner: Runner,
        stats: ModelMetrics,
        ready: bool = True,
        *,
        timeout: float | None = None,
        scheduler: RequestScheduler | None = None,
        max_timeout: float | None = None,
        level_timeouts: Mapping[int, float | None] | None = None,
    ) -> None:
        self.spec = spec
        self.runner = runner
        self.stats = stats
        self.ready = ready
        self.timeout = timeout
        self.scheduler = scheduler
        self.max_timeout = max_timeout
        self.level_timeouts = level_timeouts or {}
        stated = (timeout, *self.level_timeouts.values())
        self.longest_timeout = float(max(seconds or 0.0 for seconds in stated))
        self.regions: RegionTable | None = None
        self.tracer: Tracer | None = None
        self._codec: ModelCodec | None = None

    def codec(self, limits: Limits) -> ModelCodec:
        """The codec of this model under `limits`; made at the first request."""
        found = self._codec
        if found is None or found.limits is not limits:
            found = self._codec = ModelCodec(self.spec, limits, self.regions)
        return found

    def __repr__(self) -> str:
        state = "ready" if self.ready else "not ready"
        return f"<ModelEntry {self.spec.name}/{self.spec.version} {state}>"


class ModelTable:
    """The models that take requests, by the paths of their infer operation.

    Changed only in the event loop's thread, and by whole models, so a request sees a
    model before or after a change and never within. `explain` may say of a name that
    is not here why not; None if it does not know the name either. `equip` is called
    with every entry before it takes requests. `on_demand`, if there is any, loads what
    is asked for and not here.
    """

    def __init__(self) -> None:
        self.paths: dict[str, ModelEntry] = {}
        self.explain: Callable[[str, str | None], str | None] = lambda *_: None
        self.equip: Callable[[ModelEntry], None] = lambda entry: None
        self.on_demand: OnDemand | None = None
        self._entries: dict[str, tuple[ModelEntry, ...]] = {}

    def publish(
        self, name: str, entries: Iterable[ModelEntry], *, default: str | None = None
    ) -> None:
        """Makes `entries` the versions of model `name`, instead of all before.

        Requests that name no version go to `default` (None: the highest); nowhere, if
        that is not among the entries. Without entries the model is gone.
        """
        versions = tuple(entries)
        for entry in versions:
            self.equip(entry)
        paths = {
            f"{prefix}{name}/versions/{entry.spec.version}{_SUFFIX}": entry
            for entry in versions
            for prefix in PREFIXES
        }
        if versions and default is None:
            default = max((e.spec.version for e in versions), key=_order)
        for entry in versions:
            if entry.spec.version == default:
                paths |= {f"{prefix}{name}{_SUFFIX}": entry for prefix in PREFIXES}
        for path in self._paths_of(name):
            if path not in paths:
                self.paths.pop(path, None)
        self.paths.update(paths)
        if versions:
            self._entries[name] = versions
        else:
            self._entries.pop(name, None)

    def equip_all(self) -> None:
        """Equips the entries that take requests once more."""
        for versions in self._entries.values():
            for entry in versions:
                self.equip(entry)

    def remove(self, name: str) -> None:
        """Takes a model out; nothing happens if it is not there."""
        self.publish(name, ())

    def entries(self, name: str) -> tuple[ModelEntry, ...]:
        return self._entries.get(name, ())

    def _paths_of(self, name: str) -> list[str]:
        before = self._entries.get(name, ())
        paths = [f"{prefix}{name}{_SUFFIX}" for prefix in PREFIXES if before]
        return paths + [
            f"{prefix}{name}/versions/{entry.spec.version}{_SUFFIX}"
            for entry in before
            for prefix in PREFIXES
        ]

    def target(self, path: str) -> tuple[str, str | None] | None:
        """The model and version that an infer path is of; None if `path` is none."""
        prefix = next((p for p in PREFIXES if path.startswith(p)), None)
        if prefix is None or not path.endswith(_SUFFIX):
            return None
        name, slash, version = path[len(prefix) : -len(_SUFFIX)].partition("/versions/")
        if not name or "/" in name or "/" in version or bool(slash) != bool(version):
            return None
        return name, version or None

    def offers(self, path: str) -> bool:
        """Whether what is missing at `path` would be loaded on demand."""
        on_demand = self.on_demand
        target = self.target(path) if on_demand is not None else None
        return (
            target is not None and on_demand is not None and on_demand.offers(*target)
        )

    async def fetch(self, path: str, patience: Patience) -> ModelEntry | None:
        """What is at `path`, once it is loaded on demand; None if it cannot be.

        Raises `engine.DeadlineExceeded` when that is over.
        """
        target = self.target(path)
        if target is not None and self.on_demand is not None:
            await self.on_demand.ensure(*target, patience)
        return self.paths.get(path)

    def missing(self, path: str) -> RequestError | None:
        """Why there is nothing at an infer path; None if `path` is none."""
        target = self.target(path)
        if target is None:
            return None
        name, version = target
        why = self.explain(name, version)
        if why is not None:
            return VersionNotReady(name, version, why)
        is_known = name in self._entries or self.explain(name, None) is not None
        return UnknownModelRun(name, version if is_known else None)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ModelTable {len(self)} models, {len(self.paths)} paths>"


def _order(version: str) -> tuple[int, str]:
    """Versions are numbers; what is none comes before all numbers."""
    return (int(version), "") if version.isdecimal() else (-1, version)
