"""`Absent`: the models that are not in the table of models."""

from __future__ import annotations

from app.serving.timeout_policy import TimeoutPolicy


class Absent:
    """Models that may be served although the table lacks them; by default none."""

    def explain(self, name: str, version: str | None) -> str | None:
        """Return why the model is not served; None if it does not exist."""
        return None

    def is_to_come(self, name: str) -> bool:
        """Return whether a server that starts may still load the model."""
        return False

    def offers(self, name: str, version: str | None) -> bool:
        """Return whether a request to the model would load it."""
        return False

    async def ensure(
        self, name: str, version: str | None, policy: TimeoutPolicy
    ) -> None:
        """Wait until the model is loaded or has failed to load; raise when time is
        over.
        """
