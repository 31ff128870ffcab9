"""Bodies of the routes that show what the server did."""

from __future__ import annotations

from pydantic import Field

from app.api.schemas import Body


class RequestRecord(Body):
    """Outcome of a request."""

    id: str = Field(description="Its `x-request-id`.")
    model: str | None = None
    version: str | None = None
    path: str = Field(default="", description="The path of the request's URL.")
    status: int = Field(description="The status; 499 if the client disconnected first.")
    code: str = ""
    error: str = ""
    at: float = Field(description="The time of the answer, in seconds since 1970.")
    total_ms: float
    phases: dict[str, float] = Field(
        default={},
        description="Milliseconds: receive, decode, queue, compute, wake, encode.",
    )
    device: str = ""
    rows: int = 0
    batch_rows: int = Field(
        default=0, description="Rows of the batch that contained the request."
    )
    mates: list[str] | None = Field(
        default=None,
        description="Other requests of the batch, if still remembered; null in lists.",
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
    wake: list[float | None] = Field(
        description="Milliseconds that belong to no other phase."
    )
    encode: list[float | None]


class LogLines(Body):
    lines: list[str]
