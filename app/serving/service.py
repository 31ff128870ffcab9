"""Services that all requests of a gateway share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from app.background import DaemonPool
from app.codec.compression import Coding, compress, inflate, inflate_small
from app.codec.memory_check import TakesLong, reserving
from app.codec.messages import Body, InferRequest, Response
from app.codec.model import ModelCodec
from app.codec.preamble import read_preamble
from app.errors import UnknownModel
from app.observe.answers import Answers
from app.observe.journal import Journal
from app.serving.deadlines import Deadlines
from app.serving.forms import Form
from app.serving.table import ModelEntry, ModelTable
from app.serving.timeout_policy import TimeoutPolicy, header_timeout
from app.serving.transfer_memory import Reservation, TransferMemory
from engine import DeadlineExceeded

T = TypeVar("T")

# The longest time of a request in seconds, unless another setting applies.
DEFAULT_TIMEOUT = 60.0
#: The longest time in seconds that a request waits for a model of a starting server.
PATIENCE = 30.0
# Smaller calls of a thread go before one that has waited less than a second for so many
# bytes. A thread handles 20 to 200 MB in a second.
_BYTES_A_SECOND = 4 << 20


class Service:
    """The models, the bounds and the threads of requests (`app/serving/call.py`).

    `timeout` (seconds) applies if neither the request nor its model has one. A request
    states it by the parameter ``timeout`` (microseconds) or the header
    ``X-Request-Timeout`` (seconds). `transfers` bounds the memory of all bodies and
    answers. `journal` keeps the outcomes of the last requests, and `answers` counts
    them. Belongs to the event loop's thread.
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
        # One thread only: with several, the event loop would run less often.
        self._codec = DaemonPool(1, "popgate-codec", gives_way=True)
        self._inflating = DaemonPool(2, "popgate-coding", gives_way=True)

    async def inflate(self, encoding: bytes, body: Body, deadline: float) -> Body:
        """Return a compressed body uncompressed.

        Raises the errors of `app.codec.compression`, and DeadlineExceeded at
        `deadline`, a `time.monotonic()` time.
        """
        limit = self.limits.max_body_bytes
        small = inflate_small(encoding, body, limit)
        if small is not None:
            return small
        call = partial(inflate, encoding, body, limit)
        return await self._run(self._inflating, call, deadline, sum(map(len, body)))

    async def read(self, call: Callable[[], T], deadline: float, nbytes: int) -> T:
        """Return the result of `call`, which reads a body of `nbytes`, in the thread
        for large bodies.

        Raises DeadlineExceeded at `deadline`, a `time.monotonic()` time, and
        TransferMemoryFull if memory is short.
        """
        return await self._run(self._codec, call, deadline, nbytes)

    async def encode(
        self, encode: Callable[[], Response], size: int, deadline: float
    ) -> Response:
        """Return the response that `encode` makes of outputs of `size` bytes.

        It runs in the thread of `read`, and raises the same errors.
        """
        return await self._run(self._codec, encode, deadline, size, size)

    async def compress(self, response: Response, coding: Coding) -> Response:
        """Return a large response, compressed in a thread."""
        order = time.monotonic() + response.nbytes / _BYTES_A_SECOND
        call = partial(compress, response, coding)
        return await asyncio.wrap_future(self._inflating.submit(call, order))

    async def _run(
        self,
        pool: DaemonPool,
        call: Callable[[], T],
        deadline: float,
        nbytes: int,
        size: int = 0,
    ) -> T:
        """Return the result of `call`, which runs in a thread of the pool.

        Smaller calls that come later go before it, as `nbytes` says. Its memory is
        counted until it has ended, even if no request waits for it any more.
        """
        order = time.monotonic() + nbytes / _BYTES_A_SECOND
        return await _until(deadline, self._begun(pool, call, size, order))

    def _begun(
        self, pool: DaemonPool, call: Callable[[], T], size: int, order: float
    ) -> asyncio.Future[T]:
        """Begin `call` in a thread of the pool. Raises `TransferMemoryFull`."""
        transfers = self.transfers
        room = transfers.reserve(size)
        job = pool.submit(partial(_within, room, call), order)
        job.add_done_callback(lambda _: transfers.release(room))
        return asyncio.wrap_future(job)

    async def fetch(
        self, path: str, headers: Mapping[bytes, bytes], body: Body
    ) -> tuple[ModelEntry, float]:
        """Return the entry at `path` once it is loaded, and the seconds that took.

        Raises `RequestError` or `EngineError` if it is not loaded in time.
        """
        began = time.monotonic()
        await self.models.come(path, min(PATIENCE, self.latest(None, headers)))
        if path in self.models.paths:
            return self.models.paths[path], time.monotonic() - began
        if self.models.offers(path):
            kind = headers.get(b"content-type")
            length = headers.get(b"inference-header-content-length")
            read = partial(read_preamble, kind, length, body, self.limits)
            latest = began + self.latest(None, headers)
            stated = await self.read(read, latest, sum(map(len, body)))
            asked = stated.timeout
            if asked is None:
                asked = header_timeout(headers)
            policy = TimeoutPolicy(self.timeout, asked, stated.priority, began)
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
        """End the threads after their present work."""
        self._codec.close()
        self._inflating.close()

    def __repr__(self) -> str:
        return f"<Service {self.models!r} {len(self.deadlines)} in flight>"


@dataclass(eq=False, repr=False)
class Decoding:
    """The decoding of one request to the model at `_path`, in a thread if it takes
    long.

    `_follow` is called with the present version of the model if it was swapped
    meanwhile.
    """

    _service: Service
    _path: str
    _headers: Mapping[bytes, bytes]
    _form: Form | None
    _follow: Callable[[ModelEntry], None]

    async def run(self, entry: ModelEntry, body: Body, latest: float) -> InferRequest:
        """Return the request that a version of the model decodes.

        Raises `RequestError`, and DeadlineExceeded at `latest`, a `time.monotonic()`
        time.
        """
        decode = partial(self._decode, body)
        while True:
            if not entry.codec.takes_long(self._headers, body, self._form):
                with suppress(TakesLong):
                    return decode(entry.codec)
            nbytes = sum(map(len, body))
            call = partial(decode, entry.codec)
            request = await self._service.read(call, latest, nbytes)
            now = self._service.models.paths.get(self._path)
            if now is None or now.runner is entry.runner:
                return request
            self._follow(now)
            entry = now

    def _decode(self, body: Body, codec: ModelCodec) -> InferRequest:
        if self._form is not None:
            return self._form.decode(codec, body)
        get = self._headers.get
        return codec.decode(
            get(b"content-type"),
            get(b"inference-header-content-length"),
            get(b"accept"),
            body,
        )


def _within(room: Reservation, call: Callable[[], T]) -> T:
    with reserving(room.add):
        return call()


async def _until(
    deadline: float, result: asyncio.Future[T] | Coroutine[Any, Any, T]
) -> T:
    """Wait for `result` until `deadline`; a thread finishes its work in any case."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await result
    except TimeoutError:
        raise DeadlineExceeded from None
    finally:
        # The traceback of the future's error contains this frame. The two would keep
        # each other and the body alive until the garbage collector runs.
        del result
