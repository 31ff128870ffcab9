"""Routes of Python models that call others.

A route lets the process of the calling model feed the called model itself, through its
own channels (popgate_python_worker/calls/routes.py).

The gateway offers a route after a call if the gateway is not needed for further calls.
It withdraws the route when that changes. Calls through a route are read from the
process's log when the metrics are read.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from app.errors import row_of
from app.observe.metrics import ModelMetrics
from app.serving.feeders import FeedingProcess, device_key
from app.serving.table import ModelTable, infer_path
from engine import EngineError, ModelRunner, Refused, RunnerDescription, errors
from popgate_python_messages.call_log import CallLog
from popgate_python_messages.call_messages import (
    CallSocket,
    RouteOffered,
    RouteWithdrawn,
)

logger = logging.getLogger("app.serving.calls.call_routes")


@dataclass(frozen=True, slots=True)
class SharedRoute:
    """A route that a process has or will have soon."""

    model: str
    version: str
    runner: ModelRunner
    description: RunnerDescription
    stats: ModelMetrics


class CallRoutes(FeedingProcess):
    """The routes of one process. For the event loop's thread.

    `send` queues messages to the process.
    """

    def __init__(
        self,
        table: ModelTable,
        timeout: float,
        sock: CallSocket,
        send: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__()
        self._table, self._timeout = table, timeout
        self._sock, self._send = sock, send
        self._routes: dict[int, SharedRoute] = {}
        self._leaving: set[int] = set()
        self._numbers = itertools.count(1)
        self._log: CallLog | None = None
        self._offering: asyncio.Task[None] | None = None

    def _present(self, model: str, version: str) -> SharedRoute | None:
        """Return the present route to a model; None if the gateway must make the calls.

        Replicas are named by the present processes of their devices.
        """
        entry = self._table.paths.get(infer_path(model, version))
        if entry is None or self._table.keeps_nested_calls:
            return None
        spec, runner = entry.spec, entry.runner
        if not isinstance(runner, ModelRunner) or runner.failure is not None:
            return None
        if entry.scheduler is not None or entry.tracer is not None:
            return None
        if spec.defaults or spec.optional_inputs:
            return None
        if any(device.python is not None for device in runner.devices):
            return None  # it may ask for its clients, and call others
        found = runner.description
        keys = {device.id: device_key(device) for device in runner.devices}
        replicas = tuple((keys[d], n) for d, n in found.replicas)
        if not replicas:
            return None
        described = replace(found, replicas=replicas)
        return SharedRoute(model, version, runner, described, entry.stats)

    def offer(self, model: str, version: str) -> None:
        """Offer a route to a model that was called through the gateway."""
        if self._offering is not None:
            return
        route = self._present(model, version)
        if route is not None and route not in self._routes.values():
            loop = asyncio.get_running_loop()
            self._offering = loop.create_task(self._offer(route))

    async def _offer(self, route: SharedRoute) -> None:
        try:
            async with self.doors(route.runner.devices) as doors:
                self._offer_with(route, doors)
        except (EngineError, OSError, ValueError) as error:
            logger.debug("no route to model %s: %s", route.model, error)
        finally:
            self._offering = None

    def _offer_with(
        self, route: SharedRoute, doors: Mapping[tuple[str, str], int]
    ) -> None:
        if self._present(route.model, route.version) != route:
            raise Refused("the model has changed")
        number = next(self._numbers)
        offer = RouteOffered(
            number,
            route.model,
            route.version,
            tuple(doors),
            route.description.to_message(),
            self._timeout,
            has_log=self._log is None,
        )
        log, fds = self._log or CallLog.create(), list(doors.values())
        try:
            self._sock.send(offer, fds if self._log else [*fds, log.memory.fd])
        except BaseException:
            if self._log is None:
                log.close()
            raise
        log.memory.detach_fd()
        self._log = log
        self._routes[number], self.held[number] = route, route.runner

    def refresh(self, name: str) -> None:
        """Withdraw outdated routes to a model."""
        for number, route in list(self._routes.items()):
            if number in self._leaving or name != route.model:
                continue
            if number not in self._routes:
                return  # the process has ended, as sending to it has shown
            if self._present(route.model, route.version) != route:
                self._leaving.add(number)
                self._send(partial(self._sock.send, RouteWithdrawn(number)))

    def left(self, number: int) -> None:
        """Record that the process has left a route; 0 means that there are calls to
        count.
        """
        self.count()
        self._leaving.discard(number)
        self._routes.pop(number, None)
        super().left(number)

    def count(self) -> None:
        """Count the calls made since the last count."""
        for record in self._log.read() if self._log is not None else ():
            route = self._routes.get(record.route)
            if route is None:
                continue
            stats = route.stats
            stats.begin()
            if name := record.error.rstrip(b"\0").decode():
                kind = getattr(errors, name, EngineError)
                stats.failure(row_of(kind.__new__(kind)), record.total_ns)
                continue
            stats.success(
                record.total_ns,
                record.queue_ns,
                record.compute_ns,
                rows=record.rows,
                batch_rows=record.batch_rows,
            )

    def process_ended(self) -> None:
        """End all requests that the process had in flight, because it has ended."""
        if self._offering is not None:
            self._offering.cancel()
        self.count()
        self._routes.clear()
        super().process_ended()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __repr__(self) -> str:
        return f"<CallRoutes {list(self._routes.values())}>"
