"""Services that all requests of a gateway share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from app.background import DaemonPool
from app.codec.compression import inflate
from app.codec.memory_check import reserving
from app.codec.messages import Body, Response
from app.codec.model import ModelCodec
from app.codec.preamble import read_preamble
from app.errors import UnknownModel
from app.observe.answers import Answers
from app.observe.journal import Journal
from app.serving.deadlines import Deadlines
from app.serving.table import ModelEntry, ModelTable
from app.serving.timeout_policy import TimeoutPolicy, header_timeout
from app.serving.transfer_memory import Reservation, TransferMemory
from engine import DeadlineExceeded

T = TypeVar("T")

# The longest a request takes unless something says otherwise, in seconds.
DEFAULT_TIMEOUT = 60.0
#: Seconds that a request waits at most for a model of a server that starts.
PATIENCE = 30.0


class Service:
    """The models, the bounds and the threads of requests (`app/serving/call.py`).

    `timeout` (seconds) holds for requests that state none: neither by the request
    parameter ``timeout`` (microseconds) nor by the header ``X-Request-Timeout``
    (seconds), and whose model has none either. `transfers` bounds what bodies and
    answers take together; `journal` keeps what became of the last requests; `answers`
    counts them. Belongs to the event loop's thread.
    """

    def __init__(
        self,
        models: ModelTable,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        transfers: TransferMemory | None = None,
        journal: Journal | None = None,
        answers: Answers | None = None,
    ) -> None:
        self.models = models
        self.limits = models.limits
        self.timeout = timeout
        self.transfers = transfers or TransferMemory()
        self.journal = journal or Journal()
        self.answers = answers or Answers()
        self.deadlines = Deadlines()
        # One: with several, the event loop would have its turn less often.
        self._codec = DaemonPool(1, "popgate-codec")
        self._inflating = DaemonPool(2, "popgate-inflate")

    async def inflate(self, encoding: bytes, body: Body, deadline: float) -> Body:
        """Return a compressed body as it was; raises what `app.codec.compression`
        raises, and DeadlineExceeded at `deadline`, a `time.monotonic()` time.
        """
        limit = self.limits.max_body_bytes
        call = partial(inflate, encoding, body, limit)
        return await self._run(self._inflating, call, deadline)

    async def decode(
        self,
        decode: Callable[[ModelCodec], T],
        codec: ModelCodec,
        deadline: float,
    ) -> T:
        """Decode a body with `decode`, in the thread that does so for all.

        Raises DeadlineExceeded at `deadline`, a `time.monotonic()` time, and
        TransferMemoryFull if there is no room for what it takes.
        """
        return await self._run(self._codec, partial(decode, codec), deadline)

    async def encode(
        self, encode: Callable[[], Response], size: int, deadline: float
    ) -> Response:
        """Return the response that `encode` makes of outputs of `size` bytes, in the
        same thread. Raises what `decode` does.
        """
        return await self._run(self._codec, encode, deadline, size)

    async def _run(
        self, pool: DaemonPool, call: Callable[[], T], deadline: float, size: int = 0
    ) -> T:
        """Return what `call` does, in a thread of the pool. The memory that it takes is
        counted until it has ended, even if no request waits for it any more.
        """
        return await _until(deadline, self._begun(pool, call, size))

    def _begun(
        self, pool: DaemonPool, call: Callable[[], T], size: int
    ) -> asyncio.Future[T]:
        """Begin `call` in a thread of the pool. Raises `TransferMemoryFull`."""
        transfers = self.transfers
        room = transfers.reserve(size)
        job = pool.submit(partial(_within, room, call))
        job.add_done_callback(lambda _: transfers.release(room))
        return asyncio.wrap_future(job)

    async def fetch(
        self, path: str, headers: Mapping[bytes, bytes], body: Body
    ) -> tuple[ModelEntry, float]:
        """Return the entry at `path` once it is loaded, and the seconds that took.

        Raises `RequestError` or `EngineError` if there is nothing in time.
        """
        began = time.monotonic()
        await self.models.come(path, min(PATIENCE, self.latest(None, headers)))
        if path in self.models.paths:
            return self.models.paths[path], time.monotonic() - began
        if self.models.offers(path):
            get = headers.get
            read = asyncio.to_thread(
                read_preamble,
                get(b"content-type"),
                get(b"inference-header-content-length"),
                body,
                self.limits,
            )
            stated = await _until(began + self.latest(None, headers), read)
            asked = stated.timeout
            if asked is None:
                asked = header_timeout(headers)
            policy = TimeoutPolicy(self.timeout, asked, stated.priority)
            entry = await self.models.fetch(path, policy)
            if entry is not None:
                return entry, time.monotonic() - began
        raise self.models.missing(path) or UnknownModel(path)

    def latest(self, entry: ModelEntry | None, headers: Mapping[bytes, bytes]) -> float:
        """Return the longest time in seconds that a request to `entry` may take, as
        known before its body is decoded.

        `entry` is None for a model that is not in memory.
        """
        longest = self.timeout
        if entry is not None:
            longest = entry.max_timeout or max(longest, entry.longest_timeout)
        asked = header_timeout(headers)
        return longest if asked is None else min(asked, longest)

    def close(self) -> None:
        """Let the threads end after the work that they have."""
        self._codec.close()
        self._inflating.close()

    def __repr__(self) -> str:
        return f"<Service {self.models!r} {len(self.deadlines)} in flight>"


def _within(room: Reservation, call: Callable[[], T]) -> T:
    with reserving(room.take):
        return call()


async def _until(
    deadline: float, result: asyncio.Future[T] | Coroutine[Any, Any, T]
) -> T:
    """Wait for `result` until `deadline`; a thread finishes its work all the same."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await result
    except TimeoutError:
        raise DeadlineExceeded from None
    finally:
        # This frame is in the traceback of the error that the future has. The two would
        # keep each other, and the body, until the garbage collector comes by.
        del result
