"""`ModelCalls`: what a plugin of the group `popgate.model_calls` provides."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from app.plugins import MODEL_CALLS, first_plugin
from app.serving.calls.parent_request import FindRequest, RemoteParents
from app.serving.feeders import Feeder
from app.serving.table import ModelTable


class ModelCalls(Feeder, Protocol):
    """Serves the processes of Python models: their calls to other models, and their
    own metrics. For the event loop's thread, except `attach`.
    """

    def open(self) -> None:
        """Accept calls from now on, in the running event loop."""

    def attach(self, name: str, find: FindRequest, sock: socket.socket) -> None:
        """Serve a process of model `name` on `sock`, until the peer closes it. For any
        thread. `find` finds requests to the model's processes.
        """

    def render(self, *, openmetrics: bool = False) -> Iterator[str]:
        """Yield the text of the models' own metrics, one family at a time."""

    def close(self) -> None:
        """Accept no more calls."""


class MakeModelCalls(Protocol):
    """Makes the `ModelCalls` of a gateway."""

    def __call__(
        self,
        table: ModelTable,
        needs: Callable[[str], Iterable[str]],
        others: RemoteParents,
        timeout: float,
        leave_timeout: float,
    ) -> ModelCalls:
        """Return the calls to the models of `table`.

        `needs` returns the models that a model announces. `others` are the server's
        other processes. `timeout` applies to a call without a deadline.
        `leave_timeout` limits how long a process keeps feeding an unloaded model. Both
        are in seconds.
        """


def make_model_calls() -> MakeModelCalls | None:
    """Return what makes the calls of a gateway; None if no plugin has it."""
    found: MakeModelCalls | None = first_plugin(MODEL_CALLS)
    return found
