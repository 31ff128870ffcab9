"""Front of a worker: what it answers itself, and what it relays to its supervisor."""

from __future__ import annotations

from collections.abc import Sequence

from app.codec.compression import CompressResponses
from app.http.access import Access
from app.http.answer_watch import AnswerWatch
from app.http.asgi import Message, Receive, Scope, Send
from app.http.front import NAMES, InferFront, Operation
from app.http.proxies import TrustedProxies
from app.http.relay import Relay
from app.serving.keys import given_key
from app.serving.service import Service
from app.serving.table import infer_path_of
from app.workers.worker import Worker


class WorkerFront(InferFront):
    """Runs inference that the worker can run now, and relays everything else.

    A request whose key is counted is relayed too: its limits hold for all workers
    together.
    """

    def __init__(
        self,
        worker: Worker,
        relay: Relay,
        service: Service,
        access: Access,
        *,
        operations: Sequence[Operation],
        compress_responses: CompressResponses,
        base_path: str,
        origins: Sequence[str],
        proxies: TrustedProxies | None = None,
    ) -> None:
        super().__init__(
            relay,
            service,
            operations=operations,
            compress_responses=compress_responses,
            base_path=base_path,
            access=access,
            origins=origins,
            proxies=proxies,
        )
        self._worker = worker
        self._relay = relay
        self.short = worker.short

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif path := self._mine(scope):
            local, mark = self._worker.local, object()
            local[mark] = path
            try:
                await super().__call__(scope, receive, send)
            finally:
                del local[mark]
        else:
            await self._count_relayed(scope, receive, send)

    async def _count_relayed(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = AnswerWatch(
            scope, self.service.answers, self.access, scope.get(NAMES, ())
        )

        async def count_and_send(message: Message) -> None:
            watch.see(message)
            await send(message)

        try:
            await self._relay(scope, receive, count_and_send)
        finally:
            watch.end()

    def _mine(self, scope: Scope) -> str:
        """Return the infer path of the model that is to be run here; empty if
        none is.
        """
        if scope["method"] != "POST":
            return ""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        paths = self._worker.paths
        of = (infer_path_of(path, o.prefix, o.suffix) for o in self.operations)
        found = next((target for target in (path, *of) if target in paths), "")
        table = self.access.keys.table
        if found and any(key.is_limited for key in table.keys):
            given, names = given_key(dict(scope["headers"])), scope.get(NAMES, ())
            key = table.of_certificate(names) if given is None else table.find(given)
            if key is not None and key.is_limited:
                return ""
        return found

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._worker.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._worker.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return
