"""`Publication`: the models that the supervisor lets its workers run."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from app.repository.formats import SharedScheduler
from app.serving.ensemble import Ensemble, EnsembleScheduler
from app.serving.feeders import device_key
from app.serving.runner import RequestScheduler
from app.serving.stateful import StatefulScheduler
from app.serving.table import ModelEntry, ModelTable, infer_path
from engine import ModelRunner, ObjectField
from popgate_workers.messages import Shared, SharedEnsemble, SharedEntry, SharedModel
from popgate_workers.shared_counters import MOST_MODELS

logger = logging.getLogger(__name__)

#: A runner of a model that workers run too.
SharedRunner: TypeAlias = ModelRunner | Ensemble


class _PublishedRunner(NamedTuple):
    key: int
    runner: SharedRunner
    description: Shared


class Publication:
    """The models of `table` that `workers` workers may run, under the keys and the
    blocks of counters that the supervisor and its workers agree on.

    For the event loop's thread.
    """

    def __init__(self, table: ModelTable, workers: int) -> None:
        self._table = table
        self._workers = workers
        #: Blocks of counters, by name and version.
        self.blocks: dict[tuple[str, str], int] = {}
        #: The number of each device among the gauges of workers, by its id.
        self.device_numbers: dict[str, int] = {}
        self._keys = itertools.count(1)
        #: What was last published of each model.
        self._known: dict[str, list[_PublishedRunner]] = {}
        #: The names of ensembles, and why workers do not run some models.
        self._ensembles: set[str] = set()
        self._relayed: dict[tuple[str, str], str] = {}

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return self._table.names()

    def default_of(self, name: str) -> str:
        """Return the version for requests that name none."""
        entry = self._table.default(name)
        return "" if entry is None else entry.spec.version

    def changed_with(self, name: str) -> Iterator[str]:
        """Note that a model has changed. Return its name and those of the ensembles
        that change with it.
        """
        self._ensembles.discard(name)
        entries = self._table.entries(name)
        if not entries:
            self._known.pop(name, None)
        for entry in entries:
            if isinstance(entry.runner, Ensemble):
                self._ensembles.add(name)
            self._say_where(entry)
        yield name
        for user in list(self._ensembles):
            entries = self._table.entries(user)
            steps = (s for e in entries for s in getattr(e.runner, "steps", ()))
            if user != name and any(step.model == name for step in steps):
                yield from self.changed_with(user)

    def _say_where(self, entry: ModelEntry) -> None:
        """Log that workers do not run a version, once."""
        key, why = (entry.spec.name, entry.spec.version), _why_relayed(entry.scheduler)
        if why != self._relayed.get(key, ""):
            self._relayed[key] = why
            if why:
                logger.info("model %s/%s runs in the supervisor: %s", *key, why)

    def entries_of(self, name: str) -> list[tuple[SharedEntry, SharedRunner]]:
        """Return the versions of a model that workers may run now."""
        shared, known = [], self._known.pop(name, ())
        for entry in self._table.entries(name):
            runner, block = entry.runner, self._block(name, entry.spec.version)
            described = self._described(entry)
            if block is None or described is None:
                continue
            assert isinstance(runner, ModelRunner | Ensemble)
            same = (one for one in known if one[1:] == (runner, described))
            published = next(same, None)
            if published is None:
                published = _PublishedRunner(next(self._keys), runner, described)
            self._known.setdefault(name, []).append(published)
            key = published.key
            shared.append((SharedEntry.of(key, block, entry, described), runner))
        return shared

    def _described(self, entry: ModelEntry) -> Shared | None:
        """Return the data a worker needs to run a version; None if it cannot."""
        runner, scheduler = entry.runner, entry.scheduler
        is_watched = entry.tracer is not None or entry.regions is not None
        if is_watched or _why_relayed(scheduler):
            return None
        if isinstance(runner, Ensemble):
            paths = (infer_path(step.model, step.version) for step in runner.steps)
            entries = map(self._table.paths.get, paths)
            if any(one is None or self._described(one) is None for one in entries):
                return None
            members = tuple(map(ObjectField, runner.members))
            return SharedEnsemble(runner.shared, members) if runner.fits else None
        if not isinstance(runner, ModelRunner) or runner.failure is not None:
            return None
        description = runner.description.shared(self._workers)
        keys = {device.id: device_key(device) for device in runner.devices}
        replicas = tuple((keys[d], n) for d, n in description.replicas)
        if not replicas:
            return None
        return SharedModel(ObjectField(replace(description, replicas=replicas)))

    def _block(self, name: str, version: str) -> int | None:
        found = self.blocks.get((name, version))
        if found is None and len(self.blocks) < MOST_MODELS:
            found = self.blocks[name, version] = len(self.blocks)
        return found

    def device_number(self, device_id: str) -> int:
        """Return the number of a device, which may be new."""
        return self.device_numbers.setdefault(device_id, len(self.device_numbers))

    def __repr__(self) -> str:
        return f"<Publication of {len(self._known)} models>"


def _why_relayed(scheduler: RequestScheduler | None) -> str:
    """Return why workers relay requests to a model with this scheduler; empty if they
    run them.
    """
    if isinstance(scheduler, StatefulScheduler):
        if scheduler.has_sequences:
            return "one process holds the state of its sequences"
        is_shared = scheduler.generator is not None
        return "" if is_shared else "its requests go through [responses]"
    if scheduler is None or isinstance(scheduler, EnsembleScheduler | SharedScheduler):
        return ""
    return "its model format runs in one process only"
