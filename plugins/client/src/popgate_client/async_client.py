"""The client for event loops.

The blocking client (`client.py`) is made from this file: after a change here run
``python plugins/client/make_blocking.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Many
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from popgate_client.async_connections import AsyncPool
from popgate_client.core import Core, model_path, ready_path, repository_path
from popgate_client.encodings import Encoding, Outputs, Wanted
from popgate_client.errors import ClientError
from popgate_client.events import EventReader
from popgate_client.shared import (
    call_options,
    client_options,
    documents_in,
    ending,
    inputs_of,
    load_parameters,
    new_sequence_id,
    response_of,
)
from popgate_client.steps import CallOptions, RoundTrip, Steps
from popgate_client.tensors import Array
from popgate_client.texts import Ranked, classify, embed, rerank

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncClient:
    """Calls models of a server of the Open Inference Protocol: PopGate, Triton, others.

        async with AsyncClient("http://127.0.0.1:8000") as client:
            outputs = await client.infer("digits", image=pixels)
            outputs["digit"]                          # a NumPy array
            digits = client["digits"]                 # the same, as a function
            await digits(pixels, outputs=["digit"], timeout=0.5)

    Values are arrays, numbers, strings, or lists of them. They are converted to the
    model's type if only precision is lost. They are sent as binary tensors if the
    server's metadata says that it reads them, else as JSON.

    - `url`: ``http://…``, ``https://…`` or ``unix:PATH``. A path in front of ``/v2`` is
      part of the URL, as in ``unix:PATH:/base``. The default is the environment's
      `POPGATE_URL`, else this machine's port 8000.
    - `timeout`: seconds for a whole call, with retries and pauses. The server receives
      it too. None: no limit.
    - `connect_timeout`: seconds for a new connection. None: no limit but `timeout`.
    - `retries`: how often to retry a call that no server has received (connection
      refused), or that a server has refused (429, 503). The pause is `Retry-After`, or
      0.05 s; from the second refusal on at least 0.05 s, doubled each time. A request
      of a sequence is not retried after 503.
    - `idempotent`: a call may run twice. Calls without an answer are then retried too,
      and calls that a proxy answered for a lost server (500 and 502 without a code).
      Requests of a sequence are not.
    - `max_connections`: most open connections; further calls wait.
    - `max_answer`: most bytes of one answer.
    - `api_key`: sent as ``Authorization: Bearer``.
    - `headers`: sent with every request.
    - `encoding`: ``json``, ``binary``, ``msgpack`` or ``npy``, instead of the client's
      own choice.
    - `verify`, `cert`, `proxy`: as in httpx. `SSL_CERT_FILE` names other authorities.
    - `http_client`: an `httpx.AsyncClient` that sends everything. `close` leaves it
      open. Without one, plain HTTP uses this package's own connections, which cost a
      tenth. TLS, proxies and streams use httpx.

    Threads may share the blocking client. The client for event loops belongs to one
    loop, in which several calls may run. A cancelled call closes its connection, and
    the server then cancels the request. In a forked process, and in another event loop,
    a client opens connections of its own. Raises `ClientError`: InvalidRequest,
    NotFound, AuthenticationError, Unavailable, DeadlineExceeded, ServerError.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float | None = 60.0,
        connect_timeout: float | None = 10.0,
        retries: int = 3,
        idempotent: bool = False,
        max_connections: int = 100,
        max_answer: int = 1 << 32,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        encoding: Encoding | str | None = None,
        verify: Any = True,
        cert: Any = None,
        proxy: str | None = None,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self._options, self._http_options, plain = client_options(
            url, timeout, connect_timeout, retries, idempotent, max_connections,
            max_answer, api_key, headers, encoding, verify, cert, proxy,
        )  # fmt: skip
        self._core = Core(self._options)
        self._given = http_client
        self._http: httpx.AsyncClient | None = http_client
        self._process = os.getpid()
        self._pool = AsyncPool(self._options) if plain and http_client is None else None
        self._closed = False

    # Inference

    async def infer(
        self,
        model: str,
        value: Any = None,
        /,
        *,
        version: str = "",
        outputs: Wanted | None = None,
        parameters: Mapping[str, Any] | None = None,
        priority: int = 0,
        request_id: str = "",
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        **inputs: Any,
    ) -> Outputs:
        """Run a model once. Return the outputs, by name.

            await client.infer("digits", image=pixels)
            await client.infer("digits", pixels)  # a model with one input
            await client.infer("m", {"a-b": x, "timeout": y})  # no keywords
            await client.infer("m", x=x, outputs={"scores": {"classification": 3}})

        - `outputs`: names, or options for each. Default: all outputs.
        - `parameters`: parameters of the request, for the model.
        - `priority`: a level, 1 is the highest; 0: the model's default.
        - `request_id`: an id, which `Outputs.id` and errors contain too.
        - `timeout`: seconds, instead of the client's.
        """
        options = call_options(
            outputs, parameters, priority, request_id, timeout, headers
        )
        return await self.run(
            self._core.infer(model, version, inputs_of(value, inputs), options)
        )

    async def embed(
        self,
        model: str,
        texts: str | Many[str],
        *,
        version: str = "",
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Return the vectors of strings, one row for each; one vector for a single
        string.

            await client.embed("minilm", ["what is a batch?"], prompt="query")

        `prompt`: name of the prompt to put before each string. `dimensions`: length of
        the returned vectors, normalised again. `normalize`: whether vectors have length
        1; default: as in the model's folder.
        """
        parameters = {
            "prompt_name": prompt,
            "dimensions": dimensions,
            "normalize": normalize,
        }
        steps = embed(self._core, model, texts, version, parameters, timeout)
        return await self.run(steps)

    async def rerank(
        self,
        model: str,
        query: str,
        texts: Many[str],
        *,
        top: int | None = None,
        raw_scores: bool = False,
        timeout: float | None = None,
    ) -> list[Ranked]:
        """Return documents by how well they answer a query, the best first."""
        steps = rerank(self._core, model, query, texts, top, timeout, raw=raw_scores)
        return await self.run(steps)

    async def classify(
        self,
        model: str,
        texts: str | Many[str],
        *,
        raw_scores: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Return the classes of strings, the best first: a list of `Label` for each;
        one list for a single string.
        """
        steps = classify(self._core, model, texts, timeout, raw=raw_scores)
        return await self.run(steps)

    def __getitem__(self, model: str) -> AsyncModel:
        return AsyncModel(self, model)

    def model(self, model: str, version: str = "") -> AsyncModel:
        """Return a model as a function; ``client["m"]`` is the same without a
        version.
        """
        return AsyncModel(self, model, version)

    async def stream(
        self,
        model: str,
        value: Any = None,
        /,
        *,
        version: str = "",
        outputs: Wanted | None = None,
        parameters: Mapping[str, Any] | None = None,
        priority: int = 0,
        request_id: str = "",
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        **inputs: Any,
    ) -> AsyncIterator[Outputs]:
        """Yield the responses of a model that returns several, as they come (PopGate
        only).

            async for outputs in client.stream("steps", n=[5]):
                print(outputs["y"])

        Closing the iterator ends the request. The request is never retried.
        """
        options = call_options(
            outputs, parameters, priority, request_id, timeout, headers
        )
        given = inputs_of(value, inputs)
        ask = await self.run(self._core.events(model, version, given, options))
        async for document in self._events(ask):
            yield response_of(document)

    async def prepare(
        self,
        model: str,
        value: Any = None,
        /,
        *,
        version: str = "",
        parameters: Mapping[str, Any] | None = None,
        stream: bool = False,
        **inputs: Any,
    ) -> bytes:
        """Return a request of `infer` or `stream` as bytes of HTTP. Load generators
        send it to `address` repeatedly.
        """
        given = inputs_of(value, inputs)
        options = call_options(None, parameters, 0, "", None, None)
        return await self.run(
            self._core.prepare(model, version, given, options, stream=stream)
        )

    @property
    def address(self) -> tuple[str, int] | str:
        """Return host and port, or the path of a Unix socket."""
        return self._options.address

    async def generate(
        self,
        model: str,
        /,
        *,
        version: str = "",
        timeout: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Call the generate extension: a flat object in, a flat object out.

        (await client.generate("llm", PROMPT="hello", temperature=0.7))["TEXT"]
        """
        return await self.run(self._core.generate(model, version, fields, timeout))

    async def generate_stream(
        self,
        model: str,
        /,
        *,
        version: str = "",
        timeout: float | None = None,
        **fields: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the responses of `generate` as they come."""
        ask = self._core.generation(model, version, fields, timeout, stream=True)
        async for document in self._events(ask):
            yield document

    def sequence(
        self,
        model: str,
        *,
        version: str = "",
        sequence_id: int | str | None = None,
        close: bool = True,
    ) -> AsyncSequence:
        """Return requests to a model with a state, one after the other.

            async with client.sequence("accumulator") as run:
                await run(x=[1.0])
                await run(x=[2.0], end=True)

        The first request starts the sequence. If the block is left without `end`, the
        client ends the sequence by one more request, of zeros, and drops its answer. If
        `close` is False, or after an error, the server ends the sequence when it has
        been idle for long enough.
        """
        return AsyncSequence(AsyncModel(self, model, version), sequence_id, close=close)

    # The server

    async def live(self) -> bool:
        """Return whether the server runs; False also if it cannot be reached."""
        return await self.run(self._core.says_yes("/v2/health/live"))

    async def ready(self, model: str = "", *, version: str = "") -> bool:
        """Return whether the server, or a model, accepts requests."""
        return await self.run(self._core.says_yes(ready_path(model, version)))

    async def wait_ready(self, model: str = "", *, timeout: float = 60.0) -> None:
        """Wait until the server, or a model, accepts requests. Raises DeadlineExceeded
        after `timeout` seconds.
        """
        path = ready_path(model)
        await self.run(self._core.wait_until(path, timeout, model or self._options.url))

    async def metadata(self, model: str = "", *, version: str = "") -> Any:
        """Return name, version and extensions of the server, or inputs and outputs of a
        model.
        """
        return await self.ask("GET", model_path(model, version))

    async def config(self, model: str, *, version: str = "") -> Any:
        """Return the model's configuration, in Triton's form."""
        return await self.ask("GET", f"{model_path(model, version)}/config")

    async def statistics(self, model: str = "", *, version: str = "") -> Any:
        """Return the statistics of a model or of all: counts and nanoseconds,
        cumulative.
        """
        path = model_path(model, version) if model else "/v2/models"
        return await self.ask("GET", f"{path}/stats")

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of the repository: name, version, state, reason."""
        return await self.run(self._core.models())

    async def load(
        self,
        model: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | str | None = None,
    ) -> None:
        """Load a model, or load it again; return when it is ready. `config` is a
        configuration in the form that the method `config` returns.
        """
        document = load_parameters(parameters, config)
        await self.ask("POST", repository_path(model, "load"), document)

    async def unload(self, model: str, *, unload_dependents: bool = False) -> None:
        """Unload a model. Requests in flight are answered."""
        document = {"parameters": {"unload_dependents": unload_dependents}}
        await self.ask("POST", repository_path(model, "unload"), document)

    # How it is done

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps of a call, and return their result."""
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, RoundTrip):
                    try:
                        answer = await self._round_trip(ask)
                    except ClientError as error:
                        ask = steps.throw(error)
                    else:
                        ask = steps.send(answer)
                else:
                    await asyncio.sleep(ask.seconds)
                    ask = steps.send(None)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _round_trip(self, ask: RoundTrip) -> Any:
        if self._pool is not None:
            return await self._pool.exchange(ask)
        from popgate_client import web

        return await web.exchange_async(self._web(), self._options, ask)

    async def ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Return the JSON answer of a path of the server; None for an empty body.

        (await client.ask("GET", "/v1/devices"))["devices"]
        """
        return await self.run(self._core.ask(method, path, document, timeout))

    async def _events(self, ask: RoundTrip) -> AsyncIterator[dict[str, Any]]:
        reader = EventReader()
        from popgate_client import web

        async with web.pieces_async(self._web(), self._options, ask) as pieces:
            async for piece in pieces:
                for document in documents_in(reader, piece):
                    yield document
        reader.end()

    def _web(self) -> httpx.AsyncClient:
        if self._closed:
            raise ClientError("the client is closed")
        if self._http is None or (self._given is None and self._process != os.getpid()):
            # A forked process leaves the parent's connections alone.
            from popgate_client import web

            self._http = web.new_async_client(self._options, self._http_options)
            self._process = os.getpid()
        return self._http

    async def close(self) -> None:
        """Close the connections, and refuse further calls."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()
        if self._http is not None and self._given is None:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"AsyncClient({self._options.url}{state})"


class AsyncModel:
    """A model of a server as a function: `Client.infer` for this model."""

    def __init__(self, client: AsyncClient, name: str, version: str = "") -> None:
        self.client = client
        self.name = name
        self.version = version

    async def __call__(self, value: Any = None, /, **arguments: Any) -> Outputs:
        """Run the model once, with the arguments of `Client.infer`."""
        return await self.client.infer(
            self.name, value, version=self.version, **arguments
        )

    def stream(self, value: Any = None, /, **arguments: Any) -> AsyncIterator[Outputs]:
        """Yield the model's responses as they come, with the arguments of
        `Client.stream`.
        """
        return self.client.stream(self.name, value, version=self.version, **arguments)

    def sequence(self, sequence_id: int | str | None = None) -> AsyncSequence:
        """Return requests of one sequence, as `Client.sequence` does."""
        return AsyncSequence(self, sequence_id)

    async def metadata(self) -> Any:
        """Return the model's inputs and outputs."""
        return await self.client.metadata(self.name, version=self.version)

    async def ready(self) -> bool:
        """Return whether the model accepts requests."""
        return await self.client.ready(self.name, version=self.version)

    def __repr__(self) -> str:
        version = f"/{self.version}" if self.version else ""
        return f"AsyncModel({self.name}{version} of {self.client!r})"


class AsyncSequence:
    """The requests of one sequence (`Client.sequence`). Not for several threads."""

    def __init__(
        self, model: AsyncModel, sequence_id: int | str | None, *, close: bool = True
    ) -> None:
        self.model = model
        self.id = new_sequence_id() if sequence_id is None else sequence_id
        self.begun = False
        self.ended = False
        self._close = close
        self._last: Mapping[str, Any] | Any = None

    async def __call__(
        self,
        value: Any = None,
        /,
        *,
        end: bool = False,
        timeout: float | None = None,
        **inputs: Any,
    ) -> Outputs:
        """Send the next request; if `end`, it is the last one."""
        if self.ended:
            raise ClientError(f"sequence {self.id} has ended")
        given = inputs_of(value, inputs)
        options = CallOptions(timeout=timeout, sequence=(self.id, not self.begun, end))
        model, client = self.model, self.model.client
        outputs = await client.run(
            client._core.infer(model.name, model.version, given, options)
        )
        self.begun, self.ended, self._last = True, end, given
        return outputs

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._close and self.begun and not self.ended:
            await self(ending(self._last), end=True)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "begun" if self.begun else "not begun"
        return f"AsyncSequence({self.id} of {self.model.name}, {state})"
