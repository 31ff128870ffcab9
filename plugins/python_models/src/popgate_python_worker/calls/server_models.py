"""The server's other models, which a Python model calls through `Context.models`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from engine.errors import Cancelled
from engine.programs.session import RunOptions
from engine.tensor import Array
from popgate_python_worker.calls.call_client import CallClient
from popgate_python_worker.calls.pending_call import PendingCall, PendingStream


class ServerModels:
    """The models that a Python model may call, by name or ``name/version``.

    `allowed` are their names; None allows all.
    """

    def __init__(self, client: CallClient, allowed: Collection[str] | None) -> None:
        self._client = client
        self._allowed = None if allowed is None else frozenset(allowed)

    def __getitem__(self, name: str) -> ServerModel:
        """Return the model.

        Raises KeyError for a model that may not be called. A missing model fails only
        when it is called.
        """
        return ServerModel(self._client, *self._target(name))

    def is_ready(self, name: str) -> bool:
        """Return whether a model accepts requests now. Raises KeyError for a model that
        may not be called, and DeviceLost.
        """
        return self._client.is_ready(self._target(name))

    def _target(self, name: str) -> tuple[str, str]:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"the name of a model must be a string, got {kind}")
        model, _, version = name.partition("/")
        if self._allowed is not None and model not in self._allowed:
            known = ", ".join(sorted(self._allowed)) or "none"
            raise KeyError(f"{model!r} is not among its models ({known})")
        return model, version

    def __repr__(self) -> str:
        return f"<ServerModels of {self._client!r}>"


class ServerModel:
    """A model that another model calls. It takes inputs by name and returns NumPy
    arrays by name.

    Other values are converted to arrays, and numbers to the model's type if that keeps
    their kind. The outputs belong to the caller. A call ends at the deadline of the
    requests that are being answered, and is cancelled with them. Raises
    `popgate.EngineError`: `Refused` if the model cannot accept it now (it is not
    loaded, its queue is full), DeviceLost if its device dies, DeadlineExceeded,
    InvalidInput, ExecutionFailed. If the caller does not catch it, its own request
    fails with that error.
    """

    __slots__ = ("_client", "_target")

    def __init__(self, client: CallClient, name: str, version: str) -> None:
        self._client = client
        self._target = (name, version)

    def __call__(self, /, **inputs: Any) -> dict[str, Array]:
        """Call it and wait."""
        return self.call(inputs)

    def call(self, inputs: Mapping[str, Any], **options: Any) -> dict[str, Array]:
        """Call with inputs of any names.

        The options are `timeout` in seconds, `outputs` (names of the wanted outputs;
        all by default) and `parameters` of the request.
        """
        run = self._client.options
        call = self._client.begin(self._target, inputs, options)
        if run is not None:
            run.on_end(call.give_up)
        try:
            call.wait()
        finally:
            if run is not None:
                run.forget(call.give_up)
            call.end()
        _check_wanted(run)
        return call.outputs()

    def stream(
        self, inputs: Mapping[str, Any], **options: Any
    ) -> Iterator[dict[str, Array]]:
        """Yield the responses of a model that gives several, or the only response of
        another.

        The call begins immediately. The model makes each further response after the
        caller has taken the one before. `options` are the same as for `call`.
        """
        found = self._responses(self._client.stream(self._target, inputs, options))
        next(found)  # a generator that has not begun would never end its call
        return found

    def _responses(self, call: PendingStream) -> Iterator[dict[str, Array]]:
        found = iter(call)
        try:
            yield {}
            while (response := self._next(call, found)) is not None:
                yield response
                self._client.go_on(call)
        finally:
            call.end()

    def _next(
        self, call: PendingStream, found: Iterator[dict[str, Array]]
    ) -> dict[str, Array] | None:
        """Wait for the next response; None after the last one.

        In a generator model each response belongs to another run, so the present run
        is the one that cancels the wait.
        """
        run = self._client.options
        if run is not None:
            run.on_end(call.give_up)
        try:
            response = next(found, None)
        finally:
            if run is not None:
                run.forget(call.give_up)
        if response is None:
            _check_wanted(run)
        return response

    async def call_async(self, /, **inputs: Any) -> dict[str, Array]:
        """Call from a coroutine with inputs of any names. Several calls may be in
        flight.
        """
        return await self.begin_async(inputs)

    async def begin_async(
        self, inputs: Mapping[str, Any], **options: Any
    ) -> dict[str, Array]:
        """Call from a coroutine, like `call`."""
        import asyncio  # slow to import, and most models do not need it

        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

        call = self._client.begin(self._target, inputs, options, tell)
        try:
            if isinstance(call, PendingCall):
                await done.wait()
            else:
                with self._client.driver(loop).driving(call):
                    await done.wait()
        finally:
            call.end()
        return call.outputs()

    def __repr__(self) -> str:
        return f"<ServerModel {'/'.join(filter(None, self._target))}>"


def _check_wanted(run: RunOptions) -> None:
    """Raise Cancelled if no client waits for the run any more."""
    if run is not None and run.terminate:
        raise Cancelled("the run was terminated")
