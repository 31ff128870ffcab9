"""Calls between models: a call that leads back to its caller is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.serving.calls.circles import leads_to
from engine import Refused


class CallGraph:
    """The calls made so far, and the calls that a model announces by `needs`.

    A call that leads back would wait for a process that itself waits.
    """

    def __init__(self, needs: Callable[[str], Iterable[str]]) -> None:
        self._needs = needs
        self._called: dict[str, set[str]] = {}

    def add(self, caller: str, model: str) -> None:
        """Record a call. Raises Refused if it leads back to the caller."""
        called = self._called.setdefault(caller, set())
        if model in called:
            return
        if leads_to(model, caller, self._below):
            way = "itself" if model == caller else f"{model!r}, which calls it"
            raise Refused(f"model {caller!r} would call {way}")
        called.add(model)

    def _below(self, name: str) -> list[str]:
        return [*self._needs(name), *self._called.get(name, ())]

    def forget(self, caller: str) -> None:
        """Forget the calls of a changed model."""
        self._called.pop(caller, None)
