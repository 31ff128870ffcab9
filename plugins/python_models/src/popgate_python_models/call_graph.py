"""Calls between models: a call that leads back to its caller is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from app.serving.calls.circles import leads_to
from engine import Refused


class CallGraph:
    """The calls that each process of a model has made, and the calls that the model
    announces by `needs`.

    A call that leads back would wait for a process that itself waits.
    """

    def __init__(self, needs: Callable[[str], Iterable[str]]) -> None:
        self._needs = needs
        self._called: dict[str, dict[object, set[str]]] = {}

    def add(self, caller: str, process: object, model: str) -> None:
        """Record a call. Raises Refused if it leads back to the caller."""
        called = self._called.setdefault(caller, {}).setdefault(process, set())
        if model in called:
            return
        if leads_to(model, caller, self._below):
            way = "itself" if model == caller else f"{model!r}, which calls it"
            raise Refused(f"model {caller!r} would call {way}")
        called.add(model)

    def _below(self, name: str) -> list[str]:
        return [*self._needs(name), *chain(*self._called.get(name, {}).values())]

    def forget(self, caller: str, process: object) -> None:
        """Forget the calls of a process that has ended."""
        processes = self._called.get(caller, {})
        processes.pop(process, None)
        if not processes:
            self._called.pop(caller, None)
