"""What all requests of a gateway share, wherever they come in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from app.background import DaemonPool
from app.codec.compression import inflate
from app.codec.messages import Body
from app.codec.model import ModelCodec
from app.codec.preamble import read_preamble
from app.errors import UnknownModel
from app.serving.deadlines import Deadlines
from app.serving.patience import Patience, header_timeout
from app.serving.table import ModelEntry, ModelTable
from app.serving.transfer_memory import TransferMemory

T = TypeVar("T")

# The longest a request takes where nobody says otherwise, in seconds.
DEFAULT_TIMEOUT = 60.0


class Service:
    """The models, the bounds and the threads of requests (`app/serving/call.py`).

    `timeout` (seconds) holds for requests that state none: neither by the request
    parameter ``timeout`` (microseconds) nor by the header ``X-Request-Timeout``
    (seconds), and whose model has none either. `transfers` bounds what bodies and
    answers take together. Belongs to the event loop's thread.
    """

    def __init__(
        self,
        models: ModelTable,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        transfers: TransferMemory | None = None,
    ) -> None:
        self.models = models
        self.limits = models.limits
        self.timeout = timeout
        self.transfers = transfers or TransferMemory()
        self.deadlines = Deadlines()
        # One: with several, the event loop would have its turn less often.
        self._decoding = DaemonPool(1, "popgate-decode")
        self._inflating = DaemonPool(2, "popgate-inflate")

    async def inflate(self, encoding: bytes, body: Body) -> Body:
        """A compressed body as it was; raises what `app.codec.compression` raises."""
        # As many at a time as there are threads: what comes out is counted after.
        limit = self.limits.max_body_bytes
        return await self._inflating.run(partial(inflate, encoding, body, limit))

    async def decode(self, decode: Callable[[ModelCodec], T], codec: ModelCodec) -> T:
        """What `decode` makes, in the thread that does so for all."""
        return await self._decoding.run(partial(decode, codec))

    async def fetch(
        self, path: str, headers: Mapping[bytes, bytes], body: Body
    ) -> tuple[ModelEntry, float]:
        """What is at `path` once it is loaded, and the seconds that took.

        Raises `RequestError` or `EngineError` where there is nothing in time.
        """
        began = time.monotonic()
        if self.models.offers(path):
            get = headers.get
            stated = await asyncio.to_thread(
                read_preamble,
                get(b"content-type"),
                get(b"inference-header-content-length"),
                body,
                self.limits,
            )
            asked = stated.timeout
            if asked is None:
                asked = header_timeout(headers)
            patience = Patience(self.timeout, asked, stated.priority)
            entry = await self.models.fetch(path, patience)
            if entry is not None:
                return entry, time.monotonic() - began
        raise self.models.missing(path) or UnknownModel(path)

    def __repr__(self) -> str:
        return f"<Service {self.models!r} {len(self.deadlines)} in flight>"
