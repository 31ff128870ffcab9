"""Front of a worker: answers some requests, and relays the others to its supervisor."""

from __future__ import annotations

from app.codec.messages import Body
from app.codec.model import DECODED_AT_ONCE
from app.errors import RequestError
from app.http.answer_watch import AnswerWatch
from app.http.application import FrontOptions
from app.http.asgi import NAMES, Message, Receive, Scope, Send
from app.http.asgi_call import AsgiCall, NamingCall
from app.http.front import InferFront
from app.http.request_log import KEY
from app.observe.request_ids import HEADER
from app.serving.keys import given_key
from app.serving.service import Service
from app.serving.table import infer_path_of
from popgate_workers.relay import Relay
from popgate_workers.worker import Worker

#: A length with this many digits or more is not the length of a body.
_DIGITS = 10


class WorkerFront(InferFront):
    """Runs the inference that the worker can run now, and relays all other requests.

    It also relays a request whose key has limits, because they apply to all workers
    together.
    """

    def __init__(
        self, worker: Worker, relay: Relay, service: Service, options: FrontOptions
    ) -> None:
        super().__init__(relay, service, options)
        self._worker = worker
        self._relay = relay
        self.short = worker.paths.short

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif path := self._mine(scope):
            local, mark = self._worker.paths.local, object()
            local[mark] = path
            try:
                await super().__call__(scope, receive, send)
            finally:
                del local[mark]
        elif self._may_be_named(scope):
            await super().__call__(scope, receive, send)
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
            watch.finish()

    def _mine(self, scope: Scope) -> str:
        """Return the infer path of a model that this worker runs; empty if it runs
        none.
        """
        if scope["method"] != "POST":
            return ""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        paths = self._worker.paths.usable
        of = (infer_path_of(path, o.prefix, o.suffix) for o in self.options.operations)
        found = next((target for target in (path, *of) if target in paths), "")
        return "" if found and self._is_counted(scope) else found

    def _is_counted(self, scope: Scope) -> bool:
        """Return whether the key has limits for all workers together."""
        table = self.access.keys.table
        if not any(key.is_limited for key in table.keys):
            return False
        given, names = given_key(dict(scope["headers"])), scope.get(NAMES, ())
        key = table.of_certificate(names) if given is None else table.find(given)
        return key is not None and key.is_limited

    def _may_be_named(self, scope: Scope) -> bool:
        """Return whether the body of a request may name a model that this worker runs.

        The supervisor reads compressed, long and chunked bodies.
        """
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        if path not in self.naming or scope["method"] != "POST":
            return False
        headers: dict[bytes, bytes] = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        is_short = length.isdigit() and len(length) < _DIGITS
        return (
            is_short
            and int(length) <= DECODED_AT_ONCE
            and b"content-encoding" not in headers
            and not self._is_counted(scope)
        )

    async def _run(
        self, call: AsgiCall, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the request. If its body names the model, relay the request unless this
        worker runs that model.
        """
        if not isinstance(call, NamingCall):
            await super()._run(call, scope, receive, send)
            return
        came: list[Message] = []
        body: Body = []
        while not came or came[-1].get("more_body", False):
            came.append(await receive())
            body.append(came[-1].get("body", b""))
        if came[-1]["type"] != "http.request":
            return  # the client has disconnected
        left = iter(came)

        async def receive_again() -> Message:
            for message in left:
                return message
            return await receive()

        try:
            target = call.naming.target(body, self.service.models)
        except RequestError:
            target = ""  # the supervisor reports the error
        if target not in self._worker.paths.usable:
            await self._relay_named(scope, receive_again, send)
            return
        local, mark = self._worker.paths.local, object()
        local[mark] = target
        try:
            await super()._run(call, scope, receive_again, send)
        finally:
            del local[mark]

    async def _relay_named(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[KEY].is_done = True  # the supervisor logs it

        async def send_once(message: Message) -> None:
            """Send a message without the request id, which `send` adds."""
            if message["type"] == "http.response.start":
                rest = [one for one in message["headers"] if one[0] != HEADER]
                message = {**message, "headers": rest}
            await send(message)

        await self._relay(scope, receive, send_once)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer the lifespan messages. The server starts and stops the worker."""
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
