"""The blocking client. `make_blocking.py` makes it from `async_client.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from popgate_client.connections import Pool
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


class Client:
    """Calls models of a server of the Open Inference Protocol: PopGate, Triton, others.

        with Client("http://127.0.0.1:8000") as client:
            outputs = client.infer("digits", image=pixels)
            outputs["digit"]                          # a NumPy array
            digits = client["digits"]                 # the same, as a function
            digits(pixels, outputs=["digit"], timeout=0.5)

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
    - `http_client`: an `httpx.Client` that sends everything. `close` leaves it
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
        http_client: httpx.Client | None = None,
    ) -> None:
        self._options, self._http_options, plain = client_options(
            url, timeout, connect_timeout, retries, idempotent, max_connections,
            max_answer, api_key, headers, encoding, verify, cert, proxy,
        )  # fmt: skip
        self._core = Core(self._options)
        self._given = http_client
        self._http: httpx.Client | None = http_client
        self._process = os.getpid()
        self._pool = Pool(self._options) if plain and http_client is None else None
        self._closed = False

    # Inference

    def infer(
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

            client.infer("digits", image=pixels)
            client.infer("digits", pixels)  # a model with one input
            client.infer("m", {"a-b": x, "timeout": y})  # no keywords
            client.infer("m", x=x, outputs={"scores": {"classification": 3}})

        - `outputs`: names, or options for each. Default: all outputs.
        - `parameters`: parameters of the request, for the model.
        - `priority`: a level, 1 is the highest; 0: the model's default.
        - `request_id`: an id, which `Outputs.id` and errors contain too.
        - `timeout`: seconds, instead of the client's.
        """
        options = call_options(
            outputs, parameters, priority, request_id, timeout, headers
        )
        return self.run(
            self._core.infer(model, version, inputs_of(value, inputs), options)
        )

    def embed(
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

            client.embed("minilm", ["what is a batch?"], prompt="query")

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
        return self.run(steps)

    def rerank(
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
        return self.run(steps)

    def classify(
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
        return self.run(steps)

    def __getitem__(self, model: str) -> Model:
        return Model(self, model)

    def model(self, model: str, version: str = "") -> Model:
        """Return a model as a function; ``client["m"]`` is the same without a
        version.
        """
        return Model(self, model, version)

    def stream(
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
    ) -> Iterator[Outputs]:
        """Yield the responses of a model that returns several, as they come (PopGate
        only).

            for outputs in client.stream("steps", n=[5]):
                print(outputs["y"])

        Closing the iterator ends the request. The request is never retried.
        """
        options = call_options(
            outputs, parameters, priority, request_id, timeout, headers
        )
        given = inputs_of(value, inputs)
        ask = self.run(self._core.events(model, version, given, options))
        for document in self._events(ask):
            yield response_of(document)

    def prepare(
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
        return self.run(
            self._core.prepare(model, version, given, options, stream=stream)
        )

    @property
    def address(self) -> tuple[str, int] | str:
        """Return host and port, or the path of a Unix socket."""
        return self._options.address

    def generate(
        self,
        model: str,
        /,
        *,
        version: str = "",
        timeout: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Call the generate extension: a flat object in, a flat object out.

        client.generate("llm", PROMPT="hello", temperature=0.7)["TEXT"]
        """
        return self.run(self._core.generate(model, version, fields, timeout))

    def generate_stream(
        self,
        model: str,
        /,
        *,
        version: str = "",
        timeout: float | None = None,
        **fields: Any,
    ) -> Iterator[dict[str, Any]]:
        """Yield the responses of `generate` as they come."""
        ask = self._core.generation(model, version, fields, timeout, stream=True)
        yield from self._events(ask)

    def sequence(
        self,
        model: str,
        *,
        version: str = "",
        sequence_id: int | str | None = None,
        close: bool = True,
    ) -> Sequence:
        """Return requests to a model with a state, one after the other.

            with client.sequence("accumulator") as run:
                run(x=[1.0])
                run(x=[2.0], end=True)

        The first request starts the sequence. If the block is left without `end`, the
        client ends the sequence by one more request, of zeros, and drops its answer. If
        `close` is False, or after an error, the server ends the sequence when it has
        been idle for long enough.
        """
        return Sequence(Model(self, model, version), sequence_id, close=close)

    # The server

    def live(self) -> bool:
        """Return whether the server runs; False also if it cannot be reached."""
        return self.run(self._core.says_yes("/v2/health/live"))

    def ready(self, model: str = "", *, version: str = "") -> bool:
        """Return whether the server, or a model, accepts requests."""
        return self.run(self._core.says_yes(ready_path(model, version)))

    def wait_ready(self, model: str = "", *, timeout: float = 60.0) -> None:
        """Wait until the server, or a model, accepts requests. Raises DeadlineExceeded
        after `timeout` seconds.
        """
        path = ready_path(model)
        self.run(self._core.wait_until(path, timeout, model or self._options.url))

    def metadata(self, model: str = "", *, version: str = "") -> Any:
        """Return name, version and extensions of the server, or inputs and outputs of a
        model.
        """
        return self.ask("GET", model_path(model, version))

    def config(self, model: str, *, version: str = "") -> Any:
        """Return the model's configuration, in Triton's form."""
        return self.ask("GET", f"{model_path(model, version)}/config")

    def statistics(self, model: str = "", *, version: str = "") -> Any:
        """Return the statistics of a model or of all: counts and nanoseconds,
        cumulative.
        """
        path = model_path(model, version) if model else "/v2/models"
        return self.ask("GET", f"{path}/stats")

    def models(self) -> list[dict[str, Any]]:
        """Return the models of the repository: name, version, state, reason."""
        return self.run(self._core.models())

    def load(
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
        self.ask("POST", repository_path(model, "load"), document)

    def unload(self, model: str, *, unload_dependents: bool = False) -> None:
        """Unload a model. Requests in flight are answered."""
        document = {"parameters": {"unload_dependents": unload_dependents}}
        self.ask("POST", repository_path(model, "unload"), document)

    # How it is done

    def run(self, steps: Steps[T]) -> T:
        """Run the steps of a call, and return their result."""
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, RoundTrip):
                    try:
                        answer = self._round_trip(ask)
                    except ClientError as error:
                        ask = steps.throw(error)
                    else:
                        ask = steps.send(answer)
                else:
                    time.sleep(ask.seconds)
                    ask = steps.send(None)
        except StopIteration as done:
            result: T = done.value
            return result

    def _round_trip(self, ask: RoundTrip) -> Any:
        if self._pool is not None:
            return self._pool.exchange(ask)
        from popgate_client import web

        return web.exchange(self._web(), self._options, ask)

    def ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Return the JSON answer of a path of the server; None for an empty body.

        client.ask("GET", "/v1/devices")["devices"]
        """
        return self.run(self._core.ask(method, path, document, timeout))

    def _events(self, ask: RoundTrip) -> Iterator[dict[str, Any]]:
        reader = EventReader()
        from popgate_client import web

        with web.pieces(self._web(), self._options, ask) as pieces:
            for piece in pieces:
                yield from documents_in(reader, piece)
        reader.end()

    def _web(self) -> httpx.Client:
        if self._closed:
            raise ClientError("the client is closed")
        if self._http is None or (self._given is None and self._process != os.getpid()):
            # A forked process leaves the parent's connections alone.
            from popgate_client import web

            self._http = web.new_client(self._options, self._http_options)
            self._process = os.getpid()
        return self._http

    def close(self) -> None:
        """Close the connections, and refuse further calls."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()
        if self._http is not None and self._given is None:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Client({self._options.url}{state})"


class Model:
    """A model of a server as a function: `Client.infer` for this model."""

    def __init__(self, client: Client, name: str, version: str = "") -> None:
        self.client = client
        self.name = name
        self.version = version

    def __call__(self, value: Any = None, /, **arguments: Any) -> Outputs:
        """Run the model once, with the arguments of `Client.infer`."""
        return self.client.infer(self.name, value, version=self.version, **arguments)

    def stream(self, value: Any = None, /, **arguments: Any) -> Iterator[Outputs]:
        """Yield the model's responses as they come, with the arguments of
        `Client.stream`.
        """
        return self.client.stream(self.name, value, version=self.version, **arguments)

    def sequence(self, sequence_id: int | str | None = None) -> Sequence:
        """Return requests of one sequence, as `Client.sequence` does."""
        return Sequence(self, sequence_id)

    def metadata(self) -> Any:
        """Return the model's inputs and outputs."""
        return self.client.metadata(self.name, version=self.version)

    def ready(self) -> bool:
        """Return whether the model accepts requests."""
        return self.client.ready(self.name, version=self.version)

    def __repr__(self) -> str:
        version = f"/{self.version}" if self.version else ""
        return f"Model({self.name}{version} of {self.client!r})"


class Sequence:
    """The requests of one sequence (`Client.sequence`). Not for several threads."""

    def __init__(
        self, model: Model, sequence_id: int | str | None, *, close: bool = True
    ) -> None:
        self.model = model
        self.id = new_sequence_id() if sequence_id is None else sequence_id
        self.begun = False
        self.ended = False
        self._close = close
        self._last: Mapping[str, Any] | Any = None

    def __call__(
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
        outputs = client.run(
            client._core.infer(model.name, model.version, given, options)
        )
        self.begun, self.ended, self._last = True, end, given
        return outputs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._close and self.begun and not self.ended:
            self(ending(self._last), end=True)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "begun" if self.begun else "not begun"
        return f"Sequence({self.id} of {self.model.name}, {state})"
