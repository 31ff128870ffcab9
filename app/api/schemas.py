"""Bodies of the API, for documentation and for the answers that are not tensors.

Names are exactly those of the Open Inference Protocol. Tensors never pass through these
classes, which only describe them: the infer path has its own codecs.
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

    # Field names like model_name are the protocol's, so pydantic must not reserve them.
    # Those that only the document needs are built with it, not at every start.
    model_config = ConfigDict(protected_namespaces=(), defer_build=True)


class ErrorBody(Body):
    """The error of every operation."""

    error: str = Field(
        description="A message for people: what was expected and what came."
    )
    code: str = Field(description="A short, constant word for programs.")
    help: str = Field(
        default="", description="The address of the code's entry in the documentation."
    )
    request_id: str = Field(
        default="",
        description="The value of the header x-request-id, which the log shows too.",
    )


#: How the document refers to one of these.
REFERENCE = "#/components/schemas/{model}"


def error_response(text: str) -> dict[str, Any]:
    """Return an answer with `ErrorBody`, for the document alone.

    If it were given as a model, FastAPI would make a validator for each, which takes a
    fifth of the start.
    """
    schema = {"$ref": REFERENCE.format(model=ErrorBody.__name__)}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


class RequestInput(Body):
    name: str
    shape: list[int] = Field(description="Row-major; each dimension is 0 or more.")
    datatype: Datatype
    data: Any = Field(
        default=None, description="The elements, flat or nested as the shape says."
    )
    parameters: dict[str, Any] | None = None


class RequestOutput(Body):
    name: str
    parameters: dict[str, Any] | None = None


class InferenceRequest(Body):
    """`inputs` as a list of tensors, or as a mapping of name to (nested) values."""

    id: str | None = None
    inputs: list[RequestInput] | dict[str, Any]
    outputs: list[RequestOutput | str] | None = Field(
        default=None,
        description="The requested outputs, or their names; all outputs if absent.",
    )
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="Parameters: `timeout` in microseconds, `priority` (a "
        "level, 1 is the highest), `binary_data_output`, and the model's own.",
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


class MetadataTensor(Body):
    """A tensor that a model takes or gives; -1 is a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class FileTensor(MetadataTensor):
    """An input of numbers that also accepts files as BYTES, for example pictures."""

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
        default=False, description="READY but not in memory: the next request loads it."
    )


class ModelSummary(Body):
    """One model of the repository. `version` answers requests that name no version."""

    name: str
    state: State
    ready: bool = Field(description="Whether the model answers requests now.")
    reason: str = Field(
        default="", description="Why the model is not ready; empty if it is."
    )
    version: str | None = None
    versions: list[VersionStatus]
    instances: int = Field(
        default=0, description="Number of replicas; 0 if none is loaded."
    )
    url: str


class ModelList(Body):
    models: list[ModelSummary]


class ModelDetails(ModelSummary):
    platform: str = ""
    inputs: list[FileTensor | MetadataTensor] = []
    outputs: list[MetadataTensor] = []
    batching: bool = Field(
        default=False,
        description="Whether the device runs rows of different requests together.",
    )
    max_batch_size: int = Field(
        default=0, description="Most rows in a batch; 0 without batching."
    )
    example: dict[str, Any] | None = Field(
        default=None, description="A request body that this model accepts."
    )
    batching_reason: str = Field(
        default="",
        description="Why rows of different requests may or may not be mixed.",
    )
    properties: dict[str, str] = Field(
        default={}, description="The description in the model file."
    )
    memory: int = Field(
        default=0, description="Memory in bytes, as --model-memory counts it."
    )


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
    token_stats: dict[str, Any] = Field(
        {},
        description="Of text models: `tokens`, `padded_tokens` (padding included), "
        "`batches`, and the durations of `tokenizing`.",
    )


class StatisticsList(Body):
    model_stats: list[ModelStatistics]


class DeviceStatus(Body):
    """A device that this gateway has attached."""

    id: str
    state: str = Field(description="ready, lost (being restarted) or closed.")
    pid: int | None = Field(description="Process id; null without a process.")
    threads: int
    models: int
    in_flight: int
    restarts: int
    lost_by: str | None = Field(
        description="Why the device was last lost; null if it never was."
    )
    back_off: float = Field(
        description="Seconds between two attempts to start it; 0 if the last succeeded."
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
        description="Unanswered requests of any kind, without this one."
    )


class Ready(Body):
    """Readiness, with the reasons if the server is not ready. The status shows it too
    (503).
    """

    ready: bool
    reasons: list[str] = []
    loading: list[str] = Field(
        default=[], description="Models that are still being loaded."
    )
    failed: dict[str, str] = Field(
        default={}, description="Models that failed to load, with the reason."
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
