"""Bodies of the trace, log and generate extensions, for documentation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required, TypeAlias

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.api.request_bodies import MOST
from app.api.schemas import Body


class LogRequest(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: Annotated[int, Field(ge=0, le=MOST)]
    log_format: Literal["default", "ISO8601"]


# Stock clients send a number as a string.
_Digits = Annotated[str, Field(pattern="^[1-9][0-9]{0,14}$")]
_Rate: TypeAlias = Annotated[int, Field(ge=1, le=MOST)] | _Digits
_Frequency: TypeAlias = Annotated[int, Field(ge=0, le=MOST)] | _Digits | Literal["0"]
_Count: TypeAlias = Annotated[int, Field(ge=-1, le=MOST)] | _Digits | Literal["0", "-1"]
_Level: TypeAlias = Literal["OFF", "TIMESTAMPS", "TENSORS"]


class TraceRequest(TypedDict, total=False):
    """Trace settings to change; null restores the default."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    trace_level: Annotated[list[_Level], Field(min_length=1)] | None
    trace_rate: _Rate | None
    trace_count: _Count | None
    log_frequency: _Frequency | None
    trace_mode: Literal["triton"] | None


class LogDocument(Body):
    """Triton's log settings."""

    log_file: str = Field(description="Always empty: the log goes to standard error.")
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int = Field(
        description="Above 0, the log includes debugging records."
    )
    log_format: Literal["default", "ISO8601"]


class TraceDocument(Body):
    """Triton's trace settings; numbers are strings."""

    trace_level: list[str] = Field(description="OFF, TIMESTAMPS, TENSORS.")
    trace_rate: str = Field(description="The server traces one of this many requests.")
    trace_count: str = Field(
        description="Number of traces still to be written; -1 for no limit."
    )
    log_frequency: str = Field(description="Traces per file; 0 puts all into one file.")
    trace_file: str
    trace_mode: Literal["triton"]


class GenerateRequest(Body):
    """A flat object: inputs of the model by name, and parameters of the request."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    id: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, description="Parameters whose names are also names of inputs."
    )


class GenerateResponse(Body):
    """A flat object: the outputs of the model by name."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    id: str | None = None
    model_name: str
    model_version: str


class RegisterRequest(TypedDict, total=False):
    """A part of a POSIX shared memory segment; sizes are bytes."""

    key: Required[Annotated[str, Field(description="The name of the segment.")]]
    offset: Annotated[int, Field(ge=0)]
    byte_size: Required[Annotated[int, Field(ge=1)]]


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


def whole_number(value: object) -> int | None:
    """Return the integer of a JSON number, or None for any other value. 3.0 counts as
    an integer.
    """
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None
