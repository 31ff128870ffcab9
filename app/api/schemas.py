"""Bodies of the API, for documentation and for the answers that are not tensors.

Names are the Open Inference Protocol's, letter for letter. Tensors never pass through
these classes: the infer path has codecs of its own, these only describe it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Datatype: TypeAlias = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
]  # fmt: skip
State: TypeAlias = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class Body(BaseModel):
    """Base of every document here."""

    # Field names like model_name are the protocol's, not pydantic's business. Those
    # that only the document needs are built with it, not at every start.
    model_config = ConfigDict(protected_namespaces=(), defer_build=True)


class ErrorBody(Body):
    """The error of every operation."""

    error: str = Field(description="For people: what was expected and what came.")
    code: str = Field(description="A short constant word, for a program.")
    help: str = Field(
        default="", description="The address of the code's entry in the documentation."
    )
    request_id: str = Field(
        default="", description="That of the header x-request-id, for the log."
    )


#: How the document refers to one of these.
REFERENCE = "#/components/schemas/{model}"


def error_response(text: str) -> dict[str, Any]:
    """Return an answer of `ErrorBody`, for the document alone: FastAPI would make a
    validator of each that is given as a model, a fifth of the start.
    """
    schema = {"$ref": REFERENCE.format(model=ErrorBody.__name__)}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


class RequestInput(Body):
    name: str
    shape: list[int] = Field(description="Row-major; every dimension 0 or more.")
    datatype: Datatype
    data: Any = Field(
        default=None, description="The elements, nested as the shape says or flat."
    )
    parameters: dict[str, Any] | None = None


class RequestOutput(Body):
    name: str
    parameters: dict[str, Any] | None = None


class InferenceRequest(Body):
    """`inputs` as a list of tensors, or as a mapping of name to (nested) values."""

    id: str | None = None
    inputs: list[RequestInput] | dict[str, Any]
    outputs: list[RequestOutput] | None = Field(
        default=None, description="The outputs wanted; all of them if left out."
    )
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="Of the request: `timeout` in microseconds, `priority` (a level of "
        "the model, 1 goes first), `binary_data_output`, and the model's own.",
    )


class ResponseOutput(Body):
    name: str
    shape: list[int]
    datatype: Datatype
    data: Any = Field(default=None, description="The elements, flat, row-major.")
    parameters: dict[str, Any] | None = None


class InferenceResponse(Body):
    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[ResponseOutput]
    parameters: dict[str, Any] | None = None


class GenerateRequest(Body):
    """A flat object: inputs of the model by name, and parameters of the request."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    id: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, description="More parameters, for names that inputs have too."
    )


class GenerateResponse(Body):
    """A flat object: the outputs of the model by name."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    id: str | None = None
    model_name: str
    model_version: str


class PredictRequest(Body):
    """Request with either `instances` (rows) or `inputs` (columns)."""

    instances: list[Any] | None = None
    inputs: Any = None
    signature_name: str | None = None


class SplitTable(Body):
    """A table as pandas' `to_dict(orient="split")` gives it."""

    columns: list[str | int] | None = None
    data: list[list[Any]]
    index: list[Any] | None = None


class InvocationsRequest(Body):
    """One of `dataframe_split`, `dataframe_records`, `instances` and `inputs`."""

    dataframe_split: SplitTable | None = None
    dataframe_records: list[dict[str, Any]] | None = None
    instances: list[Any] | None = None
    inputs: Any = None
    params: dict[str, Any] | None = None


class InvocationsResponse(Body):
    """A prediction for each row; for `inputs` whole tensors."""

    predictions: Any


class PredictResponse(Body):
    """`predictions` for `instances`, `outputs` for `inputs`."""

    predictions: list[Any] | None = None
    outputs: Any = None


class MetadataTensor(Body):
    """A tensor that a model takes or gives; -1 is a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class FileTensor(MetadataTensor):
    """An input of numbers that also takes files, as BYTES: pictures."""

    files: Literal[True] = True


class ModelMetadata(Body):
    name: str
    versions: list[str]
    platform: str
    inputs: list[FileTensor | MetadataTensor]
    outputs: list[MetadataTensor]


class VersionStatus(Body):
    version: str
    state: State
    reason: str = ""
    in_memory: bool = Field(
        default=False, description="READY and not in memory: loaded on demand."
    )


class ModelSummary(Body):
    """One model of the repository. `version` answers where none is named."""

    name: str
    state: State
    ready: bool = Field(description="Whether it answers requests now.")
    reason: str = Field(default="", description="Why it is not ready; else empty.")
    version: str | None = None
    versions: list[VersionStatus]
    instances: int = Field(default=0, description="Replicas; 0 if none is loaded.")
    url: str


class ModelList(Body):
    models: list[ModelSummary]


class ModelDetails(ModelSummary):
    platform: str = ""
    inputs: list[FileTensor | MetadataTensor] = []
    outputs: list[MetadataTensor] = []
    batching: bool = Field(
        default=False, description="Whether rows of different requests run together."
    )
    max_batch_size: int = Field(default=0, description="Rows; 0 without batching.")
    example: dict[str, Any] | None = Field(
        default=None, description="A request body that this model answers."
    )
    batching_reason: str = Field(
        default="", description="Why rows of different requests may be mixed, or not."
    )
    properties: dict[str, str] = Field(
        default={}, description="Description from its file."
    )
    memory: int = Field(default=0, description="Bytes, as --model-memory counts it.")


class RequestRecord(Body):
    """Outcome of a request."""

    id: str = Field(description="Its `x-request-id`.")
    model: str | None = None
    version: str | None = None
    path: str = Field(default="", description="The path that it asked for.")
    status: int = Field(description="499: its client had gone.")
    code: str = ""
    error: str = ""
    at: float = Field(description="When it ended, in seconds since 1970.")
    total_ms: float
    phases: dict[str, float] = Field(
        default={},
        description="Milliseconds: receive, decode, queue, compute, wake, encode.",
    )
    device: str = ""
    rows: int = 0
    batch_rows: int = Field(default=0, description="Of the batch that it was run in.")
    mates: list[str] | None = Field(
        default=None,
        description="The requests in the same batch, as far as they are kept; null in "
        "lists.",
    )


class RequestList(Body):
    answered: list[RequestRecord]
    slow: list[RequestRecord]
    failed: list[RequestRecord]


class HistoryColumns(Body):
    """The last hour: columns of one value for each point, the oldest first."""

    interval: float = Field(description="Seconds from one point to the next.")
    time: list[float] = Field(description="Seconds since 1970, at the point's end.")
    pending: list[int] = Field(description="Requests in flight at the time.")
    rate: list[float | None] = Field(description="Answered requests per second.")
    failed: list[float | None] = Field(description="Failed requests per second.")
    batch: list[float | None] = Field(description="Mean rows of a batch.")
    latency: list[float | None] = Field(description="Mean milliseconds of a request.")
    decode: list[float | None]
    queue: list[float | None]
    compute: list[float | None]
    wake: list[float | None] = Field(description="Milliseconds of no other phase.")
    encode: list[float | None]


class LogLines(Body):
    lines: list[str]


class DurationStatistic(Body):
    count: int
    ns: int


class ModelStatistics(Body):
    """Cumulative since the process started."""

    name: str
    version: str
    last_inference: int = Field(description="Milliseconds since 1970; 0 for never.")
    inference_count: int
    execution_count: int
    inference_stats: dict[str, DurationStatistic]
    response_stats: dict[str, Any] = {}
    batch_stats: list[dict[str, Any]] = []
    memory_usage: list[dict[str, Any]] = []


class StatisticsList(Body):
    model_stats: list[ModelStatistics]


class DeviceStatus(Body):
    """A device that this gateway has attached."""

    id: str
    state: str = Field(description="ready, lost (being restarted) or closed.")
    pid: int | None = Field(description="Process id; null if there is no process.")
    threads: int
    models: int
    in_flight: int
    restarts: int
    lost_by: str | None = Field(description="Why it was lost last; null: it never was.")
    back_off: float = Field(
        description="Seconds between two tries to start it; 0: the last succeeded."
    )


class DeviceList(Body):
    devices: list[DeviceStatus]


class Live(Body):
    live: bool


class Started(Body):
    started: bool


class Drained(Body):
    """State of a drained server."""

    draining: bool
    in_flight: int = Field(
        description="Requests of any kind that are not answered yet, but this one."
    )


class Ready(Body):
    """Readiness, with the reasons if the server is not ready. The status shows it too
    (503).
    """

    ready: bool
    reasons: list[str] = []
    loading: list[str] = Field(default=[], description="Models still being loaded.")
    failed: dict[str, str] = Field(
        default={}, description="Models that could not be loaded, with the reason."
    )


class ServerMetadata(Body):
    name: str
    version: str
    extensions: list[str]


class ModelNames(Body):
    models: list[str]


class ModelReady(Body):
    name: str
    ready: bool


class IndexEntry(Body):
    name: str
    version: str | None = None
    state: State
    reason: str | None = None


class ModelState(Body):
    """Result of a load or unload."""

    name: str
    state: State
    version: str | None = None


class SystemRegion(Body):
    """A registered part of a POSIX shared memory segment; sizes are bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegion(Body):
    """A registered piece of a device's memory."""

    name: str
    device_id: int
    byte_size: int


class LogDocument(Body):
    """Triton's log settings."""

    log_file: str = Field(description="Always empty: the log is standard error.")
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int = Field(description="Above 0: debugging records too.")
    log_format: Literal["default", "ISO8601"]


class TraceDocument(Body):
    """Triton's trace settings; numbers are texts."""

    trace_level: list[str] = Field(description="OFF, TIMESTAMPS, TENSORS.")
    trace_rate: str = Field(description="One of so many requests is traced.")
    trace_count: str = Field(description="Traces still to be made; -1: no end.")
    log_frequency: str = Field(description="Traces a file; 0: all in one.")
    trace_file: str
    trace_mode: Literal["triton"]
