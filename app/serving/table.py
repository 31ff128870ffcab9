"""Table of the models by path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from app.codec.model import ModelCodec
from app.errors import RequestError, UnknownModelRun, VersionNotReady
from app.limits import DEFAULT_LIMITS, Limits
from app.observe.metrics import ModelMetrics
from app.observe.tracing import Tracer
from app.regions import Regions
from app.serving.absent import Absent
from app.serving.route_table import ModelRoute, RouteTable
from app.serving.runner import RequestScheduler, Runner
from app.serving.timeout_policy import TimeoutPolicy
from app.spec import ModelSpec

PREFIXES = ("/v1/models/", "/v2/models/")
_SUFFIX = "/infer"
# Seconds between checks for a model that is being loaded.
_LOOK = 0.02


def infer_path(name: str, version: int | str = 0) -> str:
    """Return the path for requests to a model or a version of it."""
    inner = f"/versions/{version}" if version else ""
    return f"{PREFIXES[0]}{name}{inner}{_SUFFIX}"


def infer_path_of(path: str, prefix: str, suffix: str) -> str:
    """Return the infer path of the model in `path`, which is below `prefix` and ends in
    `suffix`; empty if there is none.
    """
    if not (path.startswith(prefix) and path.endswith(suffix)):
        return ""
    found = path[: -len(suffix)] + _SUFFIX
    return found if model_of(found) is not None else ""


def model_of(path: str) -> tuple[str, str | None] | None:
    """Return the model and version of an infer path; None if `path` is not one."""
    prefix = next((p for p in PREFIXES if path.startswith(p)), None)
    if prefix is None or not path.endswith(_SUFFIX):
        return None
    name, slash, version = path[len(prefix) : -len(_SUFFIX)].partition("/versions/")
    if not name or "/" in name or "/" in version or bool(slash) != bool(version):
        return None
    return name, version or None


class ModelEntry:
    """A version of a model that accepts requests.

    `timeout` is the longest time of a request in seconds, if neither the request nor
    its headers state one. None leaves it to the front. `level_timeouts` are those of
    priority levels with their own. No request may take longer than `max_timeout`; if
    that is None, the longest of all these is the limit. If there is a `scheduler`,
    requests go through it, and it passes their tensors to the runner. `tracer` samples
    the requests if tracing is on, and changes with the settings. `regions` is the
    shared memory that requests may name, if that is allowed.
    """

    __slots__ = (
        "codec",
        "level_timeouts",
        "longest_timeout",
        "max_timeout",
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
        *,
        timeout: float | None = None,
        scheduler: RequestScheduler | None = None,
        max_timeout: float | None = None,
        level_timeouts: Mapping[int, float | None] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        regions: Regions | None = None,
    ) -> None:
        self.spec = spec
        self.runner = runner
        self.stats = stats
        self.timeout = timeout
        self.scheduler = scheduler
        self.max_timeout = max_timeout
        self.level_timeouts = level_timeouts or {}
        stated = (timeout, *self.level_timeouts.values())
        self.longest_timeout = float(max(seconds or 0.0 for seconds in stated))
        self.regions = regions
        self.tracer: Tracer | None = None
        self.codec = ModelCodec(spec, limits, regions)

    def __repr__(self) -> str:
        return f"<ModelEntry {self.spec.name}/{self.spec.version}>"


class ModelTable:
    """The models that accept requests, by the paths of their infer operation.

    The table changes only in the event loop's thread, and by whole models. So a request
    sees a model before or after a change, never in between. `limits` and `regions` are
    those of all models. `tracer` returns the sampler of a model's requests. `absent`
    knows models outside the table. `on_change` is called with the name of a changed
    model. With `keeps_nested_calls`, calls of requests to other models are kept for
    their spans. `has_keys` says that requests belong to keys (``--keys``).
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        *,
        regions: Regions | None = None,
        tracer: Callable[[str], Tracer | None] = lambda name: None,
        absent: Absent | None = None,
        on_change: Callable[[str], None] = lambda name: None,
        keeps_nested_calls: bool = False,
        has_keys: bool = False,
    ) -> None:
        self.limits = limits
        self.regions = regions
        self.keeps_nested_calls = keeps_nested_calls
        self.has_keys = has_keys
        self.paths: dict[str, ModelEntry] = {}
        #: The routes of Python models.
        self.routes = RouteTable()
        self._tracer = tracer
        self._absent = absent or Absent()
        self._entries: dict[str, tuple[ModelEntry, ...]] = {}
        self._paths_of: dict[str, frozenset[str]] = {}
        self._on_change = on_change

    def publish(
        self,
        name: str,
        entries: Iterable[ModelEntry],
        *,
        default: str | None = None,
        routes: Sequence[ModelRoute] = (),
    ) -> None:
        """Replace all versions of model `name` by `entries`.

        Requests that name no version go to `default` (None: the highest version). If
        `default` is not among the entries, such requests fail. Without entries the
        model is removed. `routes` are those of the default version.
        """
        versions = tuple(entries)
        for entry in versions:
            entry.tracer = self._tracer(name)
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
        for path in self._paths_of.pop(name, frozenset()).difference(paths):
            self.paths.pop(path, None)
        self.paths.update(paths)
        if versions:
            self._entries[name] = versions
            self._paths_of[name] = frozenset(paths)
        else:
            self._entries.pop(name, None)
        if versions or not self._absent.offers(name, None):
            self.routes.publish(name, routes)
        self._on_change(name)

    def renew_tracers(self) -> None:
        """Fetch the samplers of requests again."""
        for name, versions in self._entries.items():
            for entry in versions:
                entry.tracer = self._tracer(name)
        self.all_changed()

    def all_changed(self) -> None:
        """Report all models as changed. A lost device has come back, for example."""
        for name in self._entries:
            self._on_change(name)

    def entries(self, name: str) -> tuple[ModelEntry, ...]:
        return self._entries.get(name, ())

    def names(self) -> list[str]:
        return list(self._entries)

    def default(self, name: str) -> ModelEntry | None:
        """Return the entry for requests without a version."""
        return self.paths.get(infer_path(name))

    def offers(self, path: str) -> bool:
        """Return whether a request to the missing model at `path` would load it."""
        target = model_of(path)
        return target is not None and self._absent.offers(*target)

    def is_to_come(self, path: str) -> bool:
        """Return whether a starting server may still load the missing model."""
        if path in self.paths:
            return False
        target = model_of(path)
        return target is not None and self._absent.is_to_come(target[0])

    async def come(self, path: str, seconds: float) -> None:
        """Wait while a model may still be loaded, for `seconds` at most."""
        end = time.monotonic() + seconds
        # A model that fails sends no event, so this polls.
        while self.is_to_come(path) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    async def fetch(self, path: str, policy: TimeoutPolicy) -> ModelEntry | None:
        """Return the entry at `path` once it is loaded on demand; None if that is
        impossible.

        Raises `engine.DeadlineExceeded` when the deadline has passed.
        """
        target = model_of(path)
        if target is not None:
            await self._absent.ensure(*target, policy)
        return self.paths.get(path)

    def missing(self, path: str) -> RequestError | None:
        """Return why an infer path has no model; None if `path` is not an
        infer path.
        """
        target = model_of(path)
        if target is None:
            return None
        name, version = target
        why = self._absent.explain(name, version)
        if why is not None:
            return VersionNotReady(name, version, why)
        is_known = name in self._entries or self._absent.explain(name, None) is not None
        if is_known:
            return UnknownModelRun(name, version)
        # Clients whose keys may not see the other models read this message, too.
        known = () if self.has_keys else self._entries
        return UnknownModelRun(name, known=known)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ModelTable {len(self)} models, {len(self.paths)} paths>"


def _order(version: str) -> tuple[int, str]:
    """Return the sort key of a version: other names come before numbers."""
    return (int(version), "") if version.isdecimal() else (-1, version)
