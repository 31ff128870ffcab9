"""Path of requests to a text model: tokenizing before the model, joining after it.

Each text is a separate row for the engine, so the texts of several requests share
batches, and a short string does not wait for a long one. Small requests are tokenized
immediately, larger ones in threads, which release the GIL, in turns. Belongs to the
event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from app.codec.messages import InferRequest
from app.codec.outputs import strings_of
from app.errors import HttpError, InvalidRequest, InvalidTensor
from app.observe.token_metrics import TokenCounts
from app.repository.formats import FormatRunner, SharedFormat
from app.serving.pending import Pending
from app.serving.runner import Submitted
from app.spec import ModelSpec, TensorSpec
from engine import EngineError, QueueFull, Tensor
from popef_io import DataType
from popgate_text.admission import TextAdmission
from popgate_text.config import TextConfig
from popgate_text.feeding import Feeding
from popgate_text.folder import TOKENIZER, TOKENS, TextModel
from popgate_text.joining import joined
from popgate_text.tokenizer import Encoded, TextTokenizer
from popgate_text.turns import at_once, in_turns

#: The name of the format's entry point.
FORMAT: Final = "text"
#: Key of a request's `TextOptions`, if a form has made them.
OPTIONS: Final = "popgate.text"
TEXT, PAIR, ALIAS = "text", "text_pair", "input_text"
#: The error code for requests that a model does not support.
WRONG_KIND: Final = "wrong_model_kind"
#: Most bytes of all token vectors in an answer.
MOST_VECTOR_BYTES: Final = 64 << 20
#: Most bytes that are tokenized in the event loop: a thread's detour takes as long.
AT_ONCE: Final = 1024
#: About as many bytes has a token in `Encoded`: two places, and a number.
_TOKEN_BYTES: Final = 48
#: More rows than this are joined in a thread.
JOINED_AT_ONCE: Final = 64
#: The tokens of all texts, and the nanoseconds that took.
Rows: TypeAlias = tuple[list[Encoded], int]
_DIRECTIONS: Final = {"right": "right", "left": "left"}


@dataclass(slots=True)
class TextOptions:
    """Options for the texts of one request, and the results of tokenizing.

    None stands for the model's default. If `all_tokens`, the result has a vector for
    each token instead of one for each text. Forms set `texts` and their `pairs` instead
    of tensors, or `ids`, which are token ids. The scheduler sets the rest: `tokens` of
    each text, and nanoseconds.
    """

    prompt_name: str | None = None
    truncate: bool | None = None
    side: str = "right"
    normalize: bool | None = None
    dimensions: int | None = None
    raw_scores: bool = False
    all_tokens: bool = False
    texts: Sequence[str] | None = None
    pairs: Sequence[str] | None = None
    ids: Sequence[Sequence[int]] | None = None
    tokens: list[int] = field(default_factory=list)
    tokenizing_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0


def options_of(request: InferRequest) -> TextOptions:
    """Return the options of a request, which may be among its parameters.

    Raises `InvalidRequest`.
    """
    parameters = request.parameters or {}
    found = parameters.get(OPTIONS)
    if isinstance(found, TextOptions):
        return found
    options = TextOptions()
    if not parameters:
        return options
    for name, kind in (
        ("prompt_name", str), ("truncate", bool), ("normalize", bool),
        ("dimensions", int), ("raw_scores", bool), ("truncation_direction", str),
    ):  # fmt: skip
        value = parameters.get(name)
        if value is None:
            continue
        if type(value) is not kind:
            wanted = {str: "a string", bool: "true or false", int: "a whole number"}
            msg = f"parameter '{name}' must be {wanted[kind]}, got {value!r:.80}"
            raise InvalidRequest(msg)
        setattr(options, "side" if name == "truncation_direction" else name, value)
    options.side = direction(options.side)
    return options


def direction(value: str) -> str:
    """Return the side at which texts are cut. Raises `InvalidRequest`."""
    found = _DIRECTIONS.get(value.lower())
    if found is None:
        msg = f"truncation_direction must be 'left' or 'right', got {value!r:.80}"
        raise InvalidRequest(msg)
    return found


class TextRun(Pending):
    """The rows of one request."""

    def __init__(
        self,
        request: InferRequest,
        options: TextOptions,
        deadline: float,
        on_done: Callable[[Any], None],
        scheduler: TextScheduler,
    ) -> None:
        super().__init__({}, deadline, on_done, request.priority)
        self.options = options
        self.count_memory = request.count_memory
        self.counts = TokenCounts()
        self._scheduler = scheduler
        self._held = 0
        #: Its work in a thread: tokenizing, or joining the results.
        self.in_thread: asyncio.Future[Any] | None = None
        self.rows: list[Encoded] = []
        self.results: list[Mapping[str, Tensor] | None] = []
        self.next = 0
        self.left = 0
        self.running: dict[int, Submitted] = {}
        #: Whether its rows are being abandoned. Each calls `_row_done` meanwhile.
        self.is_given_up = False

    def admit(self, texts: int) -> None:
        """Count the texts as in flight until the request ends. Raises `QueueFull`."""
        self._scheduler.admission.acquire(texts)
        self._held = texts

    def release(self, *, answered: bool) -> None:
        """Release the texts that `admit` counted."""
        held, self._held = self._held, 0
        if held:
            self._scheduler.admission.release(held, answered=answered)

    @property
    def rows_left(self) -> int:
        return len(self.rows) - self.next

    def feed(self) -> bool:
        return self._scheduler.feed(self)

    def resolve(self, error: Exception | None = None) -> None:
        self._scheduler.feeding.leave(self)
        self.release(answered=error is None)
        super().resolve(error)

    def give_up(self, error: EngineError) -> None:
        self.is_given_up = True
        if self.in_thread is not None:
            self.in_thread.cancel()
        for submitted in list(self.running.values()):
            if not submitted.done:
                submitted.abandon(error)


class TextScheduler:
    """Runs requests to one version of a text model."""

    def __init__(
        self,
        spec: ModelSpec,
        runner: FormatRunner,
        model: TextModel,
        tokenizer: TextTokenizer,
        config: TextConfig,
    ) -> None:
        self.model = model
        self.config = config
        self.tokenizer = tokenizer
        self._runner = runner
        self.admission = TextAdmission(config.max_concurrent_texts)
        self.feeding: Feeding[TextRun] = Feeding()
        tokens = spec.outputs_by_name.get(TOKENS)
        #: Bytes of one token's vector; 0 if the model gives none.
        self._vector_bytes = 0
        if tokens is not None and tokens.shape and tokens.shape[-1] > 0:
            self._vector_bytes = 4 * tokens.shape[-1]
        self._inputs = [(t.name, t.type.dtype, t.data_type) for t in spec.inputs]
        self.visible = _visible(spec, model, config)
        #: The data from which a worker makes its own scheduler (`from_shared`).
        self.shared = SharedFormat(
            FORMAT,
            spec,
            {
                "folder": str(tokenizer.folder),
                "digest": tokenizer.digest,
                "model": model.to_message(),
                "config": {**asdict(config), "pooling": list(config.pooling)},
            },
        )

    @classmethod
    def from_shared(
        cls, spec: ModelSpec, runner: FormatRunner, description: Mapping[str, Any]
    ) -> TextScheduler:
        """Return a scheduler for a model that another process has loaded. Raises
        ValueError if its tokenizer has changed since, OSError."""
        model = TextModel.from_message(description["model"])
        tokenizer = TextTokenizer(Path(description["folder"]), model)
        if tokenizer.digest != description["digest"]:
            msg = f"{TOKENIZER} has changed since the load; load the model again"
            raise ValueError(msg)
        given = description["config"]
        config = TextConfig(**{**given, "pooling": tuple(given["pooling"])})
        return cls(spec, runner, model, tokenizer, config)

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> TextRun:
        """Run a request. Raises `InvalidRequest`, `TransferMemoryFull`, and the
        runner's errors.
        """
        options = options_of(request)
        run = TextRun(request, options, deadline, on_done, self)
        given = request.inputs.get(TEXT) or request.inputs.get(ALIAS)
        own = options.ids if options.texts is None else options.texts
        count = len(own or ())
        if given is not None:
            count = given.shape[0] if given.shape else 1
        # Check before the texts are copied, because copying takes long.
        self._check_count(count)
        run.admit(count)
        try:
            self._tokenize(run, given, request.inputs.get(PAIR))
        except Exception:
            run.release(answered=False)
            raise
        return run

    def _tokenize(
        self, run: TextRun, given: Tensor | None, pair: Tensor | None
    ) -> None:
        """Begin the rows of a request: immediately if it is small, else
        from a thread.
        """
        rows = self._encode(given, pair, run.options)
        size = sum(0 if one is None else one.nbytes for one in (given, pair))
        size += sum(map(len, run.options.texts or ()))
        size += sum(map(len, run.options.pairs or ()))
        size += sum(map(len, run.options.ids or ()))
        if size <= AT_ONCE:
            self._begin(run, *at_once(rows))
            return
        run.in_thread = asyncio.get_running_loop().create_task(in_turns(rows))
        run.in_thread.add_done_callback(partial(self._encoded, run))

    # -- from texts to rows

    def _encode(
        self, given: Tensor | None, pair: Tensor | None, options: TextOptions
    ) -> Generator[None, None, list[Encoded]]:
        """Return the tokens of all texts, in steps. Raises `InvalidTensor`,
        `InvalidRequest`.
        """
        texts = options.texts if given is None else _texts_of(given)
        pairs = options.pairs if pair is None else _texts_of(pair)
        own = texts if options.ids is None else options.ids
        if not own:
            raise InvalidTensor("expected at least one text, got none")
        parts: Iterable[list[Encoded]]
        if options.ids is not None:
            parts = ([self._given(ids)] for ids in options.ids)
        else:
            assert texts is not None
            if pairs is not None and len(pairs) != len(texts):
                msg = f"expected {len(texts)} texts in '{PAIR}', got {len(pairs)}"
                raise InvalidTensor(msg)
            if pairs is None and self.model.kind == "reranker":
                raise InvalidTensor(f"a reranker needs input '{PAIR}' and '{TEXT}'")
            truncate = options.truncate
            parts = self.tokenizer.encode(
                self._with_prompt(texts, options),
                pairs,
                truncate=self.config.truncate if truncate is None else truncate,
                side=options.side,
            )
        found: list[Encoded] = []
        tokens, most = 0, self.config.max_request_tokens
        for part in parts:
            found += part
            tokens += sum(len(row.ids) for row in part)
            if tokens > most:
                msg = f"the request has more than {most} tokens"
                raise InvalidTensor(f"{msg} (max_request_tokens in the section [text])")
            yield
        if options.all_tokens:
            self._check_token_vectors(tokens)
        return found

    def _check_token_vectors(self, tokens: int) -> None:
        """Raise `HttpError` or `InvalidTensor` if the model has no vectors
        of tokens.
        """
        if not self._vector_bytes:
            msg = f"model '{self.visible.name}' returns no vectors of tokens"
            raise HttpError(424, f"{msg}, only one vector for each input", WRONG_KIND)
        most = MOST_VECTOR_BYTES // self._vector_bytes
        if tokens > most:
            msg = f"the request has {tokens} tokens; expected at most {most} for"
            raise InvalidTensor(f"{msg} vectors of tokens; send fewer texts at once")

    def _check_count(self, count: int) -> None:
        """Raise `InvalidTensor` for more texts than a request may have."""
        most = self.config.most_texts
        if count > most:
            msg = f"expected at most {most} texts, got {count}"
            raise InvalidTensor(f"{msg} (max_texts and max_concurrent_texts in [text])")

    def _given(self, ids: Sequence[int]) -> Encoded:
        if not self.config.token_input:
            msg = (
                "this model takes texts, not token ids; make the client send "
                "texts (LangChain: check_embedding_ctx_length=False), or set "
                "token_input = true in the section [text] of its config.toml"
            )
            raise InvalidRequest(msg)
        if not 0 < len(ids) <= self.model.max_length:
            most = self.model.max_length
            raise InvalidTensor(f"expected 1 to {most} token ids, got {len(ids)}")
        self.tokenizer.check_ids(ids)
        return Encoded(ids, [0] * len(ids))

    def _with_prompt(self, texts: Sequence[str], options: TextOptions) -> Sequence[str]:
        name = options.prompt_name or self.model.default_prompt
        if not name:
            return texts
        prompt = self.model.prompts.get(name)
        if prompt is None:
            known = ", ".join(sorted(self.model.prompts)) or "none"
            raise InvalidRequest(
                f"the model has no prompt {name!r:.80}; its prompts are {known}"
            )
        return [prompt + text for text in texts]

    def _encoded(self, run: TextRun, task: asyncio.Future[Rows]) -> None:
        run.in_thread = None
        if run.done:
            if not task.cancelled():
                task.exception()  # retrieve the exception, so that asyncio logs nothing
            return
        try:
            self._begin(run, *task.result())
        except Exception as error:
            run.give_up(_gone())
            run.resolve(error)

    # -- rows to the engine and back

    def _begin(self, run: TextRun, rows: list[Encoded], tokenizing_ns: int) -> None:
        run.rows, run.left = rows, len(rows)
        run.options.tokens = [len(row.ids) for row in rows]
        run.options.tokenizing_ns = run.counts.tokenizing_ns = tokenizing_ns
        run.results = [None] * len(rows)
        if run.count_memory is not None:
            vector = self._vector_bytes if run.options.all_tokens else 0
            run.count_memory(sum(run.options.tokens) * (_TOKEN_BYTES + vector))
        self.feeding.begin(run)

    def feed(self, run: TextRun) -> bool:
        """Give the engine the next row; return whether it took the row.

        Raises the runner's errors.
        """
        number = run.next
        try:
            submitted = self._runner.submit(
                self._tensors(run.rows[number]),
                deadline=run.deadline,
                on_done=partial(self._row_done, run, number),
                priority=run.priority,
                optional=run.options.all_tokens,
            )
        except Exception as error:
            if isinstance(error, QueueFull) and run.running:
                return False  # it continues when one of its own rows has ended
            run.give_up(_gone())
            raise
        run.next += 1
        if not submitted.done:
            run.running[number] = submitted
        return True

    def _tensors(self, row: Encoded) -> dict[str, Tensor]:
        count = len(row.ids)
        found = {}
        for name, dtype, data_type in self._inputs:
            if name == "input_ids":
                values = np.array(row.ids, dtype)
            elif name == "attention_mask":
                values = np.ones(count, dtype)
            elif name == "token_type_ids":
                values = np.array(row.types, dtype)
            else:
                begin = self.model.offset
                values = np.arange(begin, begin + count, dtype=dtype)
            found[name] = Tensor.from_numpy(values.reshape(1, count), data_type)
        return found

    def _row_done(self, run: TextRun, number: int, submitted: Submitted) -> None:
        run.running.pop(number, None)
        if run.done or run.is_given_up:
            return
        run.queue_ns = max(run.queue_ns, submitted.queue_ns)
        run.compute_ns += submitted.compute_ns
        run.batch_rows = max(run.batch_rows, submitted.batch_rows)
        run.device_id = submitted.device_id
        if submitted.error is not None:
            run.give_up(_gone())
            run.resolve(submitted.error)
            return
        run.results[number] = submitted.outputs
        run.counts.add(
            run.options.tokens[number], submitted.batch_rows, submitted.batch_length
        )
        run.left -= 1
        if run.left:
            self.feeding.go_on(run)
        elif len(run.results) <= JOINED_AT_ONCE:
            try:
                self._answer(run, self._joined(run))
            except Exception as error:
                run.resolve(error)
        else:
            joining = in_turns(self._joining(run))
            run.in_thread = asyncio.get_running_loop().create_task(joining)
            run.in_thread.add_done_callback(partial(self._has_joined, run))

    def _has_joined(
        self, run: TextRun, task: asyncio.Future[tuple[dict[str, Tensor], int]]
    ) -> None:
        run.in_thread = None
        if task.cancelled():
            return
        try:
            self._answer(run, task.result()[0])
        except Exception as error:
            run.resolve(error)

    def _answer(self, run: TextRun, outputs: dict[str, Tensor]) -> None:
        run.outputs, run.tokens = outputs, run.counts
        run.resolve()

    def _joining(self, run: TextRun) -> Generator[None, None, dict[str, Tensor]]:
        yield  # a generator, for `in_turns`
        return self._joined(run)

    def _joined(self, run: TextRun) -> dict[str, Tensor]:
        found = [row for row in run.results if row is not None]
        run.results, run.rows = [], []
        run.options.queue_ns, run.options.compute_ns = run.queue_ns, run.compute_ns
        return joined(found, run.options, self.model)

    def __repr__(self) -> str:
        return f"<TextScheduler {self.visible.name} {self.model.kind}>"


def _texts_of(tensor: Tensor) -> list[str]:
    """Return the strings of a tensor. Raises `InvalidTensor` if one is not UTF-8."""
    found = []
    for number, item in enumerate(strings_of(tensor)):
        try:
            found.append(bytes(item).decode())
        except UnicodeDecodeError:
            raise InvalidTensor(f"text {number} is not UTF-8") from None
    return found


def _gone() -> EngineError:
    from engine import Cancelled

    return Cancelled("another text of the request has failed")


def _visible(spec: ModelSpec, model: TextModel, config: TextConfig) -> ModelSpec:
    """Return the tensors that requests see: texts in, vectors or scores out."""
    inputs = [TensorSpec.make(TEXT, "BYTES", (-1,))]
    if model.kind in ("reranker", "classifier"):
        inputs.append(TensorSpec.make(PAIR, "BYTES", (-1,)))
    name = {"embedding": "embedding", "splade": "weights"}.get(model.kind, "scores")
    found = spec.outputs_by_name[name]
    output = TensorSpec(
        name, "FP32", DataType.F32, (-1, *(found.shape or (-1, -1))[1:]), model.labels
    )
    return ModelSpec(
        spec.name,
        spec.version,
        tuple(inputs),
        (output,),
        max_batch_size=max(1, spec.max_batch_size),
        max_rows=config.most_texts,
        optional_inputs=model.kind == "classifier",
        # LiteLLM's name for it at Triton servers.
        aliases={ALIAS: TEXT},
    )
