"""Bringing the members of an ensemble together. For the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from app.ensemble_config import EnsembleConfig, StepConfig
from app.ensemble_graph import EnsembleGraph, compose, label_of
from app.ensembles import EnsembleRunner
from app.loader import LoadedModel, LoadError
from app.model_record import ModelRecord, State, VersionRecord
from app.scan import VersionSource
from app.spec import ModelSpec
from app.table import ModelTable, infer_path

_TICK = 0.02  # seconds between looks at a member that is being loaded


class Members(Protocol):
    """The part of the repository that an ensemble is made from."""

    def get(self, name: str) -> ModelRecord | None: ...
    async def load_offered(self, record: ModelRecord, entry: VersionRecord) -> None: ...


class EnsembleLoader:
    """Loads ensembles, after the models that they are made of.

    `load_member` has a model loaded that is in the folder and not in memory; by default
    there is nobody who does.
    """

    def __init__(self, members: Members, table: ModelTable) -> None:
        self.load_member: Callable[[str], Awaitable[None]] | None = None
        self._members = members
        self._table = table

    async def load(self, record: ModelRecord, source: VersionSource) -> LoadedModel:
        """The ensemble that the record's configuration describes. Raises `LoadError`.

        Waits for members that are being loaded, and has those loaded that are not.
        """
        config = record.config.ensemble
        assert config is not None
        specs = []
        for number, step in enumerate(config.step):
            label = label_of(number, step)
            try:
                specs.append(await self._member(record.name, step))
            except LoadError as e:
                raise LoadError(f"{label}: {e}") from None
        try:
            graph = compose(record.name, str(source.version), config, specs)
            spec = _described(graph.spec, record)
        except ValueError as e:
            raise LoadError(str(e)) from None
        runner = EnsembleRunner(
            config, EnsembleGraph(spec, graph.steps), specs, self._table
        )
        now = time.time()
        # Its models have run before they were ready; it has nothing to run itself.
        return LoadedModel(spec, runner, record.config, source, 0, now, warmed=False)

    async def _member(self, ensemble: str, step: StepConfig) -> ModelSpec:
        """What the model of a step takes and gives, once it is loaded."""
        asked = False
        while True:
            self._check_circle(ensemble, step.model)
            member = self._members.get(step.model)
            if member is None:
                raise LoadError(f"there is no model {step.model!r} in the repository")
            offered = member.on_demand(str(step.version) if step.version else None)
            if member.is_pending or member.state is State.LOADING:
                await asyncio.sleep(_TICK)
            elif offered is not None:
                await self._members.load_offered(member, offered)
                break
            elif member.serving or member.problem or asked or self.load_member is None:
                break
            else:
                asked = True
                await self.load_member(step.model)
        entry = self._table.paths.get(infer_path(step.model, step.version))
        if entry is None:
            missing = self._table.missing(infer_path(step.model, step.version))
            raise LoadError(str(missing))
        if entry.scheduler is not None:
            msg = (
                "its requests go by [sequence] or [responses], which have no place here"
            )
            raise LoadError(msg)
        return entry.spec

    def _check_circle(self, ensemble: str, member: str) -> None:
        """Raises `LoadError` where `member` is made of `ensemble`, however far down."""
        seen: set[str] = set()
        below = [member]
        while below:
            name = below.pop()
            if name == ensemble:
                way = "itself" if member == ensemble else f"{member!r}, which runs it"
                raise LoadError(f"the ensemble would run {way}")
            if name in seen:
                continue
            seen.add(name)
            found = self._members.get(name)
            config: EnsembleConfig | None = found.config.ensemble if found else None
            below += [step.model for step in config.step] if config else []


def _described(spec: ModelSpec, record: ModelRecord) -> ModelSpec:
    """The spec with what the ensemble's own options say. Raises ValueError."""
    config = record.config
    unknown = set(config.labels).difference(spec.outputs_by_name)
    if unknown:
        msg = f"there are labels for {sorted(unknown)}, which are no outputs"
        raise ValueError(msg)
    if config.max_request_rows and not spec.is_batched:
        msg = "max_request_rows is for ensembles of which every model is batched"
        raise ValueError(msg)
    most = [rows for rows in (spec.max_rows, config.max_request_rows) if rows]
    return replace(
        spec,
        outputs=tuple(
            replace(output, labels=config.labels.get(output.name, output.labels))
            for output in spec.outputs
        ),
        max_rows=min(most, default=0),
    )
