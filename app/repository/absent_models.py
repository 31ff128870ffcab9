"""`AbsentModels`: the models that are not in the table (`app.serving.table.Absent`)."""

from __future__ import annotations

from dataclasses import dataclass

from app.repository.model_life import State
from app.repository.on_demand import OnDemandLoader
from app.repository.records import ModelRecords
from app.serving.timeout_policy import TimeoutPolicy
from app.stage import Stage


@dataclass(eq=False, repr=False)
class AbsentModels:
    """Explains why models are absent, and loads those that requests may load."""

    _stage: Stage
    _records: ModelRecords
    _on_demand: OnDemandLoader

    def explain(self, name: str, version: str | None) -> str | None:
        """Return why a model or version is not served; None if it does not exist."""
        if not self._stage.is_serving and not len(self._records):
            # The folder has not been read.
            return f"the gateway is {self._stage.phase}"
        return self._records.explain(name, version)

    def is_to_come(self, name: str) -> bool:
        """Return whether the server is starting and may still load the model."""
        if not self._stage.is_starting:
            return False
        record = self._records.get(name)
        if record is None:
            return not len(self._records)  # the folder has not been read
        return record.state is State.LOADING

    def offers(self, name: str, version: str | None) -> bool:
        """Return whether a request to the model would load it."""
        return self._on_demand.offers(name, version)

    async def ensure(
        self, name: str, version: str | None, policy: TimeoutPolicy
    ) -> None:
        """Load the model; raises as `OnDemandLoader.ensure` does."""
        await self._on_demand.ensure(name, version, policy)
