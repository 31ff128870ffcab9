"""Loading the members of an ensemble. For the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.config.ensemble_config import StepConfig
from app.repository.load_errors import LoadError, explained
from app.repository.model_life import State
from app.repository.records import LoadedModel, ModelRecord, ModelRecords, VersionRecord
from app.repository.source import VersionSource
from app.serving.calls.circles import leads_to
from app.serving.ensemble import EnsembleScheduler, label_of, why_no_member
from app.serving.ensemble_kind import ensemble_kind
from app.serving.table import ModelEntry, ModelTable, infer_path
from app.spec import ModelSpec

_TICK = 0.02  # seconds between checks of a member that is being loaded


class MissingModels:
    """Passes the requests of ensembles on to a loader of models.

    An ensemble is loaded by the loader that loads its members too. So both exist before
    the loader registers here.
    """

    def __init__(self) -> None:
        self._loaders: list[Callable[[str], Awaitable[None]]] = []

    def register(self, load: Callable[[str], Awaitable[None]]) -> None:
        """Let `load` load missing models from now on."""
        self._loaders.append(load)

    async def load(self, name: str) -> None:
        """Load a model; return when it is loaded or has failed to load.

        Without a loader, nothing happens.
        """
        for load in self._loaders:
            await load(name)


@dataclass(eq=False, repr=False)
class EnsembleLoader:
    """Loads ensembles, after their member models.

    `_missing` loads a model that is in the folder but not in memory, if that is
    allowed.
    """

    _records: ModelRecords
    _table: ModelTable
    _missing: MissingModels

    async def load(self, record: ModelRecord, source: VersionSource) -> LoadedModel:
        """Return the ensemble that the record's configuration describes. Raises
        `LoadError`.

        Waits for members that are being loaded, and loads missing members.
        """
        config = record.config.ensemble
        assert config is not None
        specs = []
        for number, step in enumerate(config.step):
            label = label_of(number, step.model)
            try:
                specs.append(await self._member(record.name, step))
            except LoadError as e:
                raise LoadError(f"{label}: {e}") from None
        with explained(f"{record.name}/{source.version}"):
            runner = ensemble_kind().ensemble(
                record.name,
                str(source.version),
                record.config,
                specs,
                source.declared,
                self._table,
            )
        # The members have run before they were ready, and the ensemble itself runs
        # nothing.
        return LoadedModel(
            runner.spec,
            runner,
            record.config,
            source,
            memory=0,
            loaded_at=time.time(),
            warmed=False,
            scheduler=EnsembleScheduler(runner),
            example=record.config.example,
        )

    async def require(self, name: str, models: Sequence[str]) -> None:
        """Return when the models that `name` calls are loaded. Raises `LoadError`."""
        for model in models:
            await self._present(name, model)

    async def _member(self, ensemble: str, step: StepConfig) -> ModelSpec:
        """Return the spec of a step's model, once it is loaded."""
        entry = await self._present(ensemble, step.model, step.version)
        if reason := why_no_member(entry.scheduler):
            raise LoadError(reason)
        return entry.spec

    async def _present(self, user: str, model: str, version: int = 0) -> ModelEntry:
        """Return the entry of a model that `user` needs, once it is loaded."""
        asked = False
        tried: set[VersionRecord] = set()
        while True:
            self._check_circle(user, model)
            member = self._records.get(model)
            if member is None:
                raise LoadError(f"there is no model {model!r} in the repository")
            offered = member.on_demand(str(version) if version else None, tried)
            if member.is_pending or member.state is State.LOADING:
                await asyncio.sleep(_TICK)
            elif offered is not None:
                tried.add(offered)
                await member.load(offered)
            elif member.serving or member.problem or asked:
                break
            else:
                asked = True
                await self._missing.load(model)
        entry = self._table.paths.get(infer_path(model, version))
        if entry is None:
            missing = self._table.missing(infer_path(model, version))
            raise LoadError(str(missing))
        return entry

    def _check_circle(self, user: str, member: str) -> None:
        """Raise `LoadError` if `member` needs `user`, directly or indirectly."""
        if leads_to(member, user, self._records.needs_of):
            way = "itself" if member == user else f"{member!r}, which runs it"
            raise LoadError(f"{user!r} would run {way}")
