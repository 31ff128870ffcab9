"""Call a Python model's code: a plain function, a generator, or a coroutine. A
coroutine runs in the author's event loop.

Only the thread that runs programs may use this module.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import Cancelled, ExecutionFailed
from engine.programs.session import RunOptions
from engine.tensor import Array

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger("engine.programs.python_calls")

#: Stands for a missing response: there are no more.
NOTHING = object()
#: The most characters of a traceback, and of each of its lines, that are logged.
MAX_TRACEBACK = 16384
MAX_LINE = 4096


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an author's exception, cut to a fixed length because its
    message may be long.
    """
    lines = traceback.format_exception(error)
    short = (f"{line[:MAX_LINE]} …" if len(line) > MAX_LINE else line for line in lines)
    text = "".join(short).rstrip()
    # The end names the error, so cut off the beginning.
    return text if len(text) <= MAX_TRACEBACK else f"… {text[-MAX_TRACEBACK:]}"


class AuthorsLoop:
    """Runs the coroutines of an author's code. Makes its loop when first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def finish(self, result: Any, options: RunOptions = None) -> Any:
        """Return `result`, awaited if it is awaitable. Raises its error, or Cancelled
        if the run should end.
        """
        if not inspect.isawaitable(result):
            return result
        import asyncio  # slow to import, and most models do not need it

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._run(self._loop, result, options)

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        awaitable: Awaitable[Any],
        options: RunOptions,
    ) -> Any:
        import asyncio

        async def waited() -> Any:
            return await awaitable

        task = loop.create_task(waited())
        end = partial(_cancel, loop, task)
        if options is not None:
            options.on_end(end)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if options is None or not options.terminate:
                raise ExecutionFailed("the model cancelled its own call") from None
            raise Cancelled("the run was terminated") from None
        finally:
            if options is not None:
                options.forget(end)

    def close(self) -> None:
        """End everything that the author's code has left running."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        import asyncio

        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        with contextlib.suppress(Exception):
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def __repr__(self) -> str:
        return f"<AuthorsLoop {self._loop!r}>"


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    """Cancel the task. Callable from any thread at any time."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(task.cancel)


class Responses:
    """The requests to a generator that have not received their last response.

    `call` makes the iterator of a request. If no further step comes, the iterator is
    closed at the deadline.
    """

    def __init__(self, call: Callable[..., Any], loop: AuthorsLoop) -> None:
        self._call, self._loop = call, loop
        self._open: dict[int, tuple[Any, int]] = {}

    def step(self, step: Array, feed: Mapping[str, Array], options: RunOptions) -> Any:
        """Return the next response of a request, or NOTHING.

        `step` and `feed` follow STEP of engine/programs/python_tensors.py. Raises the
        author's exceptions.
        """
        request, number, deadline = map(int, step)
        self._close_late(time.monotonic_ns())
        if number < 0:
            self.close_request(request)
            return NOTHING
        if not number:
            # Copy the arrays, because they are valid only during this run and more runs
            # follow.
            mine = {name: array.copy() for name, array in feed.items()}
            self._open[request] = self._call(**mine), deadline
        found = self._open.get(request)
        if found is None:
            raise ExecutionFailed("the responses of this request have ended")
        try:
            response = self._next(found[0], options)
        except BaseException:
            self.close_request(request)
            raise
        if response is NOTHING:
            del self._open[request]
        elif not request:  # a trial run needs only one response
            self.close_request(request)
        return response

    def _next(self, iterator: Any, options: RunOptions) -> Any:
        if isinstance(iterator, AsyncIterator):
            return self._loop.finish(anext(iterator, NOTHING), options)
        return next(iterator, NOTHING)

    def _close_late(self, now: int) -> None:
        for request, (_, deadline) in list(self._open.items()):
            if 0 < deadline < now:
                self.close_request(request)

    def close_request(self, request: int) -> None:
        """End the responses to a request. Exceptions while closing are logged."""
        iterator, _ = self._open.pop(request, (None, 0))
        close = getattr(iterator, "aclose", None) or getattr(iterator, "close", None)
        if close is None:
            return
        try:
            self._loop.finish(close())
        except BaseException as error:
            _log.error("%s", traceback_of(error))

    def close(self) -> None:
        """End the responses to all requests."""
        for request in list(self._open):
            self.close_request(request)

    def __repr__(self) -> str:
        return f"<Responses to {len(self._open)} requests>"
