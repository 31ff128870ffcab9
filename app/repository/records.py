"""`ModelRecords`: the known models by name, and answers about their states."""

from __future__ import annotations

from app.repository.model_life import State
from app.repository.model_record import ModelRecord
from app.repository.places import ModelPlaces
from engine import ModelRunner


class ModelRecords:
    """The models of some places. For the event loop's thread.

    `newcomer` is the message for a model added after the start; `{}` is its name.
    """

    def __init__(self, places: ModelPlaces, newcomer: str) -> None:
        self.places = places
        self._newcomer = newcomer
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
            return self._newcomer.format(name) if self.places.holds(name) else None
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
