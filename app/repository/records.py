"""Records of the models in the repository: states, reasons, loaded versions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from app.config.model_config import ModelConfig
from app.repository.model_life import LIFE, Action, Event, State
from app.repository.model_sources import RemoteUrl
from app.repository.saved_state import save_state
from app.repository.source import ScannedModel, VersionSource
from app.serving.ensemble import Ensemble
from app.serving.route_table import ModelRoutes
from app.serving.runner import RequestScheduler
from app.spec import ModelSpec
from engine import ModelRunner

#: The reason for models that were added to the folder after the last scan, too.
NEVER_LOADED = "the model is not loaded; POST /v1/models/{}/load loads it"
UNLOADED = "unloaded"  # the word that scripts look for
ON_DEMAND = "the first request to the model loads it"

# After a failed load on demand, the next attempt waits for this many seconds. The next
# request must not repeat the failing work immediately.
RETRY_SECONDS = 10.0


class RepositoryError(Exception):
    """A load or unload that failed.

    `found` is False for an unknown model. `passing` is the code of a passing condition,
    after which the same call may succeed.
    """

    def __init__(self, message: str, *, found: bool = True, passing: str = "") -> None:
        super().__init__(message)
        self.found = found
        self.passing = passing


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A version that can run, and its sources.

    `memory` is its size in bytes that counts for `--model-memory`. `loaded_at` is a
    `time.time()`. `warmed` says that it has run before it was ready, with free
    dimensions of `fill`. `example` are fitting values by input, if any were given.
    `routes` are its own routes.
    """

    spec: ModelSpec
    runner: ModelRunner | Ensemble
    config: ModelConfig
    source: VersionSource
    memory: int
    loaded_at: float
    warmed: bool
    scheduler: RequestScheduler | None = None
    fill: int = 1
    example: Mapping[str, Any] = field(default_factory=dict)
    routes: ModelRoutes = field(default_factory=ModelRoutes)

    @property
    def version(self) -> str:
        return self.spec.version

    def is_from(self, source: VersionSource, config: ModelConfig) -> bool:
        """Return whether loading these sources again would change nothing."""
        return self.config == config and self.source == source

    def save(self) -> None:
        """Save its state to the place in the options, if that is set. Blocks."""
        if self.config.save_outputs and isinstance(self.runner, ModelRunner):
            save_state(self.runner, Path(self.config.save_outputs), self.version)

    def __repr__(self) -> str:
        return f"<LoadedModel {self.spec.name}/{self.version} {self.runner!r}>"


#: Loads an offered version of a model.
LoadOffered: TypeAlias = "Callable[[ModelRecord, VersionRecord], Awaitable[None]]"


@dataclass(slots=True, eq=False)
class VersionRecord:
    """One version, loaded or not. Compared by identity.

    `loaded` is the object that serves now, if there is one.

    `reason` is the last error, if there is one. `passing` is its code if the model is
    not at fault, so an immediate retry is allowed. A version that is loaded on demand
    keeps its sources in `source` and `config`. `load_offered` loads an offered version.
    """

    version: int
    load_offered: LoadOffered
    state: State = State.UNLOADED
    reason: str = ""
    loaded: LoadedModel | None = None
    source: VersionSource | None = None
    config: ModelConfig = field(default_factory=ModelConfig)
    retry_at: float = 0.0
    passing: str = ""

    @property
    def is_ready(self) -> bool:
        """Return whether it is in memory, or the next request loads it.

        A version that failed is not, although a request may load it again.
        """
        offered = self.source is not None and self.state is State.ON_DEMAND
        return self.loaded is not None or offered

    @property
    def is_on_demand(self) -> bool:
        """Return whether a request may load it now, or wait for its load."""
        if self.loaded is not None or self.source is None:
            return False
        if self.state in (State.ON_DEMAND, State.LOADING):
            return True
        return time.monotonic() >= self.retry_at

    @property
    def explanation(self) -> str:
        """Return the version's problem, or else why it is not in memory.

        The result is empty if the version is in memory.
        """
        if self.reason:
            return self.reason
        if self.state.word == "UNAVAILABLE":
            return UNLOADED
        return ON_DEMAND if self.state is State.ON_DEMAND else ""

    def take_sources(self, source: VersionSource, config: ModelConfig) -> None:
        """Take over the files and options of the next load."""
        self.source, self.config = source, config

    def fail(self, reason: str) -> None:
        """Keep the reason of a failure that changes no state; empty if it is over."""
        self.reason = reason

    def on(
        self,
        event: Event,
        *,
        loaded: LoadedModel | None = None,
        reason: str = "",
        passing: str = "",
    ) -> LoadedModel | None:
        """Process an event as the table of `model_life` says.

        `loaded` is the new version, `reason` the error, `passing` its code if the error
        passes. Returns the version that no longer serves, to be drained and closed. A
        KeyError is a bug in PopGate.
        """
        self.state, action = LIFE[self.state][event]
        if action is Action.LOAD:
            return None  # the caller loads it and reports the outcome
        before, self.reason = self.loaded, reason
        self.passing = passing
        if action is Action.KEEP:
            assert before is not None
            self.source, self.config = before.source, before.config
        else:
            self.loaded = loaded
        if action in (Action.OFFER, Action.EVICT, Action.AGAIN):
            self.retry_at = 0.0
        elif action in (Action.RETRY, Action.KEEP, Action.STOP):
            self.retry_at = time.monotonic() + RETRY_SECONDS
        if action in (Action.STOP, Action.CLOSE, Action.FORGET):
            self.source = None
        return None if action is Action.KEEP else before


@dataclass(slots=True)
class ModelRecord:
    """Record of one model of the repository.

    `stamp` is the state of the folder at the last load, `url` the place of a remote
    model. `is_pending` is true if the
    folder has not been read yet.
    """

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    config: ModelConfig = field(default_factory=ModelConfig)
    reason: str = ""
    stamp: tuple[object, ...] = ()
    url: RemoteUrl | None = None
    is_pending: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Returns why the newest files have not arrived, if they are remote.
    news: Callable[[], str] = str

    def expect(self) -> None:
        """Note that the folder is about to be read."""
        self.is_pending = True

    def read(self, scanned: ScannedModel) -> None:
        """Take over what was read from the folder."""
        self.is_pending = False
        self.reason = scanned.problem
        self.stamp = scanned.stamp
        self.url = scanned.url
        if not scanned.problem:
            self.config = scanned.config

    def fail(self, reason: str) -> None:
        """Keep why the model as a whole could not be loaded."""
        self.reason = reason

    def settle(self) -> None:
        """Note that the folder is not about to be read any more."""
        self.is_pending = False

    def fetch_from(self, news: Callable[[], str]) -> None:
        """Let `news` return why the newest files have not arrived."""
        self.news = news

    def version(self, number: int, load_offered: LoadOffered) -> VersionRecord:
        """Return the record of a version; a new one if there is none."""
        return self.versions.setdefault(number, VersionRecord(number, load_offered))

    async def load(self, entry: VersionRecord) -> None:
        """Load a version that is on offer."""
        await entry.load_offered(self, entry)

    @property
    def serving(self) -> dict[int, LoadedModel]:
        records = sorted(self.versions.items())
        return {v: r.loaded for v, r in records if r.loaded is not None}

    @property
    def sources(self) -> list[VersionSource]:
        """Return all present or future sources of a version."""
        records = self.versions.values()
        found = [r.source for r in records] + [
            r.loaded.source for r in records if r.loaded is not None
        ]
        return [source for source in found if source is not None]

    @property
    def available(self) -> list[int]:
        """Return the versions that take requests, in memory or not, ascending."""
        records = sorted(self.versions.items())
        return [v for v, r in records if r.loaded is not None or r.is_on_demand]

    @property
    def default_version(self) -> int | None:
        """Return the version for requests without one: the highest that is ready.

        If none is ready, it is the highest that a request may load.
        """
        ready = [v for v, record in self.versions.items() if record.is_ready]
        return max(ready or self.available, default=None)

    @property
    def default(self) -> LoadedModel | None:
        """Return the default version, if it is in memory."""
        version = self.default_version
        return self.versions[version].loaded if version is not None else None

    @property
    def state(self) -> State:
        """Return the best state of all versions."""
        if self.is_pending:
            return State.LOADING
        states = {record.state for record in self.versions.values()}
        return next((state for state in State if state in states), State.UNLOADED)

    @property
    def absence(self) -> str:
        """Return why the model is not served although nothing failed."""
        state = self.state
        if state.word == "UNAVAILABLE":
            return UNLOADED if self.versions else NEVER_LOADED.format(self.name)
        return ON_DEMAND if state is State.ON_DEMAND else f"it is {state.word.lower()}"

    @property
    def problem(self) -> str:
        """Return the errors of the model or its versions; empty if there are none."""
        if self.reason:
            return self.reason
        bad = (r for r in self.versions.values() if r.reason)
        return "; ".join(f"version {r.version}: {r.reason}" for r in bad)

    @property
    def passing(self) -> str:
        """Return the errors' code if all errors come from conditions that may be over
        by now; else an empty string.
        """
        codes = [r.passing for r in self.versions.values() if r.reason]
        return codes[0] if codes and all(codes) and not self.reason else ""

    def on_demand(
        self, version: str | None, tried: Collection[VersionRecord] = ()
    ) -> VersionRecord | None:
        """Return the version that a request would load next; None if there is none.

        The request has waited for the loads of `tried`. It does not load them again if
        they failed.
        """
        entry = _asked(self, version)
        if entry is None or not entry.is_on_demand:
            return None
        return None if entry.state is State.FAILED and entry in tried else entry


def ready_version(record: ModelRecord, version: str | None) -> VersionRecord | None:
    """Return this version (None: the default one) if it is ready, else None."""
    entry = _asked(record, version)
    return entry if entry is not None and entry.is_ready else None


def _asked(record: ModelRecord, version: str | None) -> VersionRecord | None:
    """Return this version (None: the default one) in any state, if it exists."""
    number = record.default_version if version is None else _number(version)
    return record.versions.get(number) if number else None


def _number(version: str) -> int:
    """Return a version as a number; 0 if it is none."""
    return int(version) if version.isdecimal() and len(version) < 19 else 0


class Places(Protocol):
    """The part of the places of models (places.py) that the records ask."""

    def holds(self, name: str) -> bool: ...
    def public(self, reason: str) -> str: ...


class ModelRecords:
    """The models of some places. For the event loop's thread.

    `not_loaded` is the message for a model added after the start; `{}` is its name.
    """

    def __init__(self, places: Places, not_loaded: str) -> None:
        self.places = places
        self._not_loaded = not_loaded
        self._records: dict[str, ModelRecord] = {}

    def all(self) -> list[ModelRecord]:
        """Return the records of all known models, by name."""
        return [self._records[name] for name in sorted(self._records)]

    def get(self, name: str) -> ModelRecord | None:
        return self._records.get(name)

    def record(self, name: str) -> ModelRecord:
        """Return the record of a model; a new one if there is none."""
        return self._records.setdefault(name, ModelRecord(name))

    def remove(self, name: str) -> None:
        """Remove the record of a model."""
        del self._records[name]

    def names_in(self, *states: State) -> list[str]:
        return [record.name for record in self.all() if record.state in states]

    def explain(self, name: str, version: str | None = None) -> str | None:
        """Return why a model or version is not served, in words that clients may read.
        The result is None if the model does not exist.
        """
        why = self._explain(name, version)
        return why and self.places.public(why)

    def _explain(self, name: str, version: str | None) -> str | None:
        record = self._records.get(name)
        if record is None:
            return self._not_loaded.format(name) if self.places.holds(name) else None
        if version is None or not record.versions:
            return record.problem or record.absence
        for number, entry in record.versions.items():
            if str(number) == version:
                return entry.explanation or record.problem or record.absence
        return None

    def without_replica(self) -> list[str]:
        """Return the models that are ready and have no live replica at the moment."""
        return [
            record.name
            for record in self.all()
            if any(
                isinstance(loaded.runner, ModelRunner) and not loaded.runner.serving
                for loaded in record.serving.values()
            )
        ]

    def problems(self) -> dict[str, str]:
        """Return the models with a failed load, with reasons that clients may read."""
        public = self.places.public
        return {r.name: public(r.problem) for r in self.all() if r.problem}

    def users_of(self, name: str) -> list[ModelRecord]:
        """Return the ensembles that contain a model, directly or indirectly."""
        found: dict[str, ModelRecord] = {}
        names = [name]
        while names:
            part = names.pop()
            for record in self._records.values():
                ensemble = record.config.ensemble
                if record.name in found or ensemble is None:
                    continue
                if any(step.model == part for step in ensemble.step):
                    found[record.name] = record
                    names.append(record.name)
        return list(found.values())

    def needs_of(self, name: str) -> list[str]:
        """Return the models that a model needs, as its options say."""
        found = self._records.get(name)
        if found is None:
            return []
        config = found.config.ensemble
        steps = [step.model for step in config.step] if config else []
        return [*steps, *(found.config.models or ())]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        ready = len(self.names_in(State.READY))
        return f"{self.places} {ready}/{len(self)} ready"
