"""Classes for authors of Python models: a base class and its context."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from engine.programs.session import RunOptions
from engine.tensor import Array
from popgate_python_interface.own_metrics import OwnMetrics

#: The name of the graph in a Python model's executable. The content of that graph is
#: the file.
GRAPH = "python"


class CalledModel(Protocol):
    """Another model that this model calls."""

    def __call__(self, /, **inputs: Any) -> dict[str, Array]: ...
    def call(self, inputs: Mapping[str, Any], **options: Any) -> dict[str, Array]: ...
    def stream(
        self, inputs: Mapping[str, Any], **options: Any
    ) -> Iterator[dict[str, Array]]: ...
    async def call_async(self, /, **inputs: Any) -> dict[str, Array]: ...
    async def begin_async(
        self, inputs: Mapping[str, Any], **options: Any
    ) -> dict[str, Array]: ...


class CalledModels(Protocol):
    """The models that this model may call, by name or as ``name/version``."""

    def __getitem__(self, name: str) -> CalledModel: ...
    def is_ready(self, name: str) -> bool: ...


class NoModels:
    """Stands for the other models if there is no server."""

    def __getitem__(self, name: str) -> CalledModel:
        raise KeyError(
            f"cannot call model {name!r}: only a server can run other models"
        )

    def is_ready(self, name: str) -> bool:
        return False


class PresentRun:
    """The options of the run that a model is in; None between runs."""

    __slots__ = ("options",)

    def __init__(self) -> None:
        self.options: RunOptions = None

    def begin(self, options: RunOptions) -> None:
        self.options = options

    def end(self) -> None:
        self.options = None

    def __repr__(self) -> str:
        return f"<PresentRun {self.options!r}>"


class Context:
    """The context that a model receives when it is loaded. Only the thread that calls
    the model may use it.
    """

    __slots__ = (
        "client_requests_now",
        "config",
        "device",
        "folder",
        "log",
        "metrics",
        "models",
        "rows_now",
        "run",
        "threads",
    )

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        device: str,
        threads: int,
        *,
        models: CalledModels | None = None,
        metrics: OwnMetrics | None = None,
        run: PresentRun | None = None,
        client_requests_now: Callable[[], tuple[tuple[str, str, str], ...]] = tuple,
        rows_now: Callable[[], tuple[int, ...]] = tuple,
    ) -> None:
        self.folder = folder
        """The folder that ``model.py`` is in."""
        self.config = config
        """The table ``parameters`` of ``config.toml``."""
        self.device = device
        """The device that the model runs on, such as ``python:0``."""
        self.threads = threads
        """How many threads its libraries should use."""
        self.log = logging.getLogger("model")
        """Messages logged here go to the server's log, with the model's name."""
        self.models: CalledModels = models or NoModels()
        """The other models of the server, to call:
        ``context.models["classifier"](pixels=x)``.
        """
        self.metrics = metrics or OwnMetrics()
        """For the server's ``/metrics``:
        ``context.metrics.family("cats_total", "Cats", "counter").series()``, which has
        `increment`."""
        # Not for authors.
        self.client_requests_now = client_requests_now
        self.rows_now = rows_now
        self.run = run or PresentRun()

    @property
    def rows(self) -> tuple[int, ...]:
        """Return the number of rows of each request of the present call, in order; 0 if
        rows are not counted.
        """
        return self.rows_now()

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Return the id of each request of the present call, in order. The id is the
        client's ``x-request-id``, or a generated one.

        Empty without a server. The first use in a call asks the server, which takes as
        long as a call to an empty model.
        """
        return tuple(request_id for request_id, _, _ in self.client_requests_now())

    @property
    def traceparents(self) -> tuple[str, ...]:
        """Return the W3C header ``traceparent`` for calls on behalf of each request of
        the present call, in order; empty if it is not traced.
        """
        return tuple(traceparent for _, traceparent, _ in self.client_requests_now())

    @property
    def parameters(self) -> tuple[dict[str, Any], ...]:
        """Return the ``parameters`` of each request of the present call, in their
        order.
        """
        return tuple(one.get("parameters", {}) for one in self.stated())

    def stated(self) -> list[dict[str, Any]]:
        """Return the fields that each request states (``id``, ``timeout``,
        ``parameters``). Not for authors.
        """
        return [
            json.loads(stated or "{}") for _, _, stated in self.client_requests_now()
        ]

    @property
    def request_id(self) -> str:
        """Return the first of `request_ids`; empty if there are none."""
        return next(iter(self.request_ids), "")

    @property
    def traceparent(self) -> str:
        """Return the first of `traceparents` that is traced; empty if there is none."""
        return next(filter(None, self.traceparents), "")

    @property
    def cancelled(self) -> bool:
        """Return whether no client waits for the present call any more. If so, the
        model should return early.
        """
        options = self.run.options
        return options is not None and bool(options.terminate)

    def __repr__(self) -> str:
        return f"<Context of {self.folder} on {self.device}>"


class Model:
    """The base class for a model in Python, in a file ``model.py``.

    Deriving from it is optional: any class with `inputs`, `outputs` and ``__call__``
    works. Write the tensors as ``{"text": "BYTES[-1]", "image":
    "FP32[-1,3,224,224]"}``, with the type names of the Open Inference Protocol. -1
    means any size. If `batching` is True, the first dimension counts rows, and one call
    may receive rows of several requests. By setting it the author promises that rows do
    not depend on each other.

    ``__call__`` receives the inputs by name as read-only NumPy arrays (BYTES: an object
    array of `bytes`), which are valid until it returns. It returns a mapping of outputs
    by name, or the only output. An exception fails only the rows that caused it. One
    thread makes all calls.
    """

    inputs: ClassVar[Mapping[str, str]]
    outputs: ClassVar[Mapping[str, str]]
    batching: ClassVar[bool] = False

    #: Takes the inputs by name and returns the outputs.
    __call__: Callable[..., Any]

    def load(self, context: Context) -> None:
        """Prepare the model. Called once, before the first call. If it raises, the
        model is not served.
        """

    def close(self) -> None:
        """Close the model. Called once when it is unloaded, but not if its process is
        killed.
        """
