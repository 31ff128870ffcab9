"""Clients that keep sending through all failures, and a record of every request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.cases.workload import Job, endless
from bench.drivers.client import Client, CutAnswer, NoAnswer
from bench.servers.server import HOST, Server

#: A request without an answer after this many seconds hangs.
TIMEOUT = 15.0
#: Pause of a client whose connection was refused or closed.
PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Event:
    """One request. `status` is 0 if no byte of an answer came; times monotonic."""

    sent: float
    ended: float
    status: int
    complaint: str = ""
    model: str = ""


@dataclass(slots=True)
class Traffic:
    """Answers of all clients, in the order in which they ended."""

    over: bool = False
    events: list[Event] = field(default_factory=list)

    def statuses(self) -> Counter[int]:
        return Counter(event.status for event in self.events)

    def complaints(self) -> list[str]:
        """Return wrong, cut and missing answers: no kill excuses them."""
        return [event.complaint for event in self.events if event.complaint]

    def in_flight(self, moment: float) -> list[Event]:
        """Return the requests that were sent before `moment` and ended after it."""
        return [event for event in self.events if event.sent < moment < event.ended]

    def answered_since(self, moment: float) -> set[str]:
        """Return the models that answered 200 to a request sent after `moment`."""
        return {e.model for e in self.events if e.status == 200 and e.sent > moment}

    async def until(self, seen: Callable[[Traffic], bool], seconds: float) -> float:
        """Wait until `seen(self)`; returns the seconds that took.

        Raises:
            AssertionError: it did not come true in `seconds`.
        """
        started = time.monotonic()
        while not seen(self):
            if time.monotonic() - started > seconds:
                states = dict(self.statuses())
                complaints = self.complaints()[:3]
                msg = f"not in {seconds} s; statuses {states}, complaints {complaints}"
                raise AssertionError(msg)
            await asyncio.sleep(0.005)
        return time.monotonic() - started

    async def answers(self, count: int, seconds: float = 30.0) -> None:
        """Wait for `count` more answers with 200."""
        goal = self.statuses()[200] + count
        await self.until(lambda traffic: traffic.statuses()[200] >= goal, seconds)


async def _keep_asking(
    server: Server, jobs: Sequence[Job], seed: int, traffic: Traffic
) -> None:
    async with Client(HOST, server.port, timeout=TIMEOUT) as client:
        for job in endless(jobs, seed):
            if traffic.over:
                return
            sent = time.monotonic()
            status, complaint = await _ask(client, job)
            event = Event(sent, time.monotonic(), status, complaint, job.model)
            traffic.events.append(event)
            if status != 200:
                await asyncio.sleep(PAUSE)


async def _ask(client: Client, job: Job) -> tuple[int, str]:
    try:
        answer = await client.post(job.path, job.payload)
    except NoAnswer:
        return 0, ""
    except CutAnswer as error:
        return 0, f"cut: {error}"
    except TimeoutError:
        return 0, f"no answer in {TIMEOUT} s"
    # The caller knows which errors are allowed at the moment.
    return answer.status, job.complaint(answer) if answer.status == 200 else ""


@asynccontextmanager
async def clients(
    server: Server, jobs: Sequence[Job], count: int
) -> AsyncIterator[Traffic]:
    """Run `count` clients until the block ends; then each finishes its request."""
    traffic = Traffic()
    asking = asyncio.gather(
        *(_keep_asking(server, jobs, seed, traffic) for seed in range(count))
    )
    try:
        yield traffic
    finally:
        traffic.over = True
        await asking
