"""The last requests: their outcomes, and the time spent in each phase."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BeforeValidator

from app.api.dependencies import MANAGEMENT, GatewayOf, Viewer, ViewerOf
from app.api.schemas import error_response
from app.errors import HttpError
from app.gateway import Gateway
from app.http.access import model_of
from app.observe.journal import LAST, Answered, Failed, Journal
from app.observe.log import last_lines
from app.observe.log_writer import MOST_KEPT
from popgate_pages.history import INTERVAL, History
from popgate_pages.schemas import HistoryColumns, LogLines, RequestList, RequestRecord

#: The most requests of each kind that one answer has.
MOST_LISTED = 200
_MS = 1_000_000


def _only_digits(value: object) -> object:
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("expected a whole number in digits")
    return value


#: Refuses numbers that only Python takes, such as 1_0.
DIGITS = BeforeValidator(_only_digits)


async def _pages_are_on(gateway: GatewayOf) -> None:
    if gateway.settings.no_pages:
        msg = "Not Found: the pages and their data are turned off (--no-pages)"
        raise HttpError(404, msg, "not_found")


def requests_router(kept: History) -> APIRouter:
    """Return the routes; `kept` is the last hour."""
    text = "The request is not known, or the server has no pages (--no-pages)."
    router = APIRouter(
        prefix="/v1",
        tags=["requests"],
        dependencies=[Depends(_pages_are_on)],
        responses={404: error_response(text)},
    )
    add = router.add_api_route
    add("/requests", list_requests, summary="List the last requests")

    @router.get("/history", summary="Show the last hour")
    async def history(
        viewer: ViewerOf,
        model: Annotated[str, Query(description="Only of this model.")] = "",
    ) -> HistoryColumns:
        """Return rates and mean times of the last hour, one point every ten seconds.

        If the server has keys, they cover only models that the key may see. Requests in
        flight are those of all models. A restart clears the history.
        """
        return _columns(
            kept, lambda name: (not model or name == model) and viewer.sees(name)
        )

    text = "Show the last lines of the log"
    add("/log", log, summary=text, dependencies=MANAGEMENT)
    add("/requests/{request_id:path}", get_request, summary="Explain a request")
    return router


async def list_requests(
    gateway: GatewayOf,
    viewer: ViewerOf,
    model: Annotated[str, Query(description="List only requests to this model.")] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED), DIGITS] = 50,
) -> RequestList:
    """List the last requests, the last failed ones, and the slowest of the last quarter
    of an hour.

    The newest or the slowest comes first. If the server has keys, the lists contain
    only requests to models that the key may see. Only a key that may manage the
    server sees the error messages of requests with other keys.
    """
    journal = await gateway.whole_journal()

    def of_model(requests: Iterable[Answered]) -> Iterator[Answered]:
        found = (
            r
            for r in requests
            if (not model or r.model.name == model) and viewer.sees(r.model.name)
        )
        return itertools.islice(found, limit)

    failed = (
        one
        for one in reversed(journal.failed)
        if not model or (one.model is not None and one.model.name == model)
        if _is_seen(gateway, viewer, one)
    )
    return RequestList(
        answered=[_answered(r) for r in of_model(journal.answered())],
        slow=[_answered(r) for r in of_model(journal.slowest())],
        failed=[_failed(one, viewer) for one in itertools.islice(failed, limit)],
    )


async def log(
    limit: Annotated[int, Query(ge=1, le=MOST_KEPT), DIGITS] = 200,
) -> LogLines:
    """Return the last lines of the log, unchanged, the oldest first.

    They come from the process that manages the models; other HTTP workers log to
    standard error only. Only clients that may manage the server may read them.
    """
    return LogLines(lines=last_lines(limit))


async def get_request(
    gateway: GatewayOf,
    viewer: ViewerOf,
    request_id: Annotated[str, Path(description="Its `x-request-id`.")],
) -> RequestRecord:
    """Show one request: its phases, and the other requests of its batch.

    The server keeps the last thousand requests, the slowest, and the last failed ones.
    """
    journal = await gateway.whole_journal()
    wanted = request_id.encode()
    kept = itertools.chain(journal.answered(), journal.slowest())
    for answered in kept:
        if answered.request_id == wanted and viewer.sees(answered.model.name):
            return _answered(answered, _mates(journal, answered))
    for failed in reversed(journal.failed):
        if failed.asked.request_id == wanted and _is_seen(gateway, viewer, failed):
            return _failed(failed, viewer)
    msg = (
        f"Not Found: request '{request_id:.128}' is not among the last {LAST} requests"
    )
    raise HttpError(404, msg, "unknown_request")


def _columns(history: History, sees: Callable[[str], bool]) -> HistoryColumns:
    points = list(history)
    columns = [point.column(sees) for point in points]
    names = HistoryColumns.model_fields.keys() - {"interval", "time", "pending"}
    return HistoryColumns(
        interval=INTERVAL,
        time=[round(point.at, 3) for point in points],
        pending=[point.pending for point in points],
        **{name: [column[name] for column in columns] for name in names},
    )


def _mates(journal: Journal, one: Answered) -> list[str]:
    """Return the other requests of the same batch.

    The run time of a batch is measured once for all its requests, in nanoseconds.
    """
    if one.batch_rows <= one.rows:
        return []
    run = (one.model, one.device, one.compute_ns, one.batch_rows)
    return [
        other.request_id.decode()
        for other in journal.answered()
        if (other.model, other.device, other.compute_ns, other.batch_rows) == run
        and other.request_id != one.request_id
    ]


def _seconds(monotonic_ns: int) -> float:
    """Return a time of the monotonic clock in seconds since 1970."""
    return round(time.time() - (time.monotonic_ns() - monotonic_ns) / 1e9, 4)


def _answered(one: Answered, mates: list[str] | None = None) -> RequestRecord:
    phases = one.phases()
    return RequestRecord(
        id=one.request_id.decode(),
        model=one.model.name,
        version=one.model.version,
        path=one.path,
        status=200,
        at=_seconds(one.ended),
        total_ms=round(one.total_ns / _MS + phases["receive"], 4),
        phases=phases,
        device=one.device,
        rows=one.rows,
        batch_rows=one.batch_rows,
        mates=mates,
    )


def _is_seen(gateway: Gateway, viewer: Viewer, one: Failed) -> bool:
    """Return whether lists may show a failed request. If it named no model, only the
    key that sent it sees it.
    """
    path = one.asked.path.removeprefix(gateway.settings.base_path.rstrip("/"))
    name = one.model.name if one.model is not None else model_of(path)
    if name is None:
        return viewer.reads(one.asked.key)
    return viewer.sees(name)


def _failed(one: Failed, viewer: Viewer) -> RequestRecord:
    return RequestRecord(
        id=one.asked.request_id.decode(),
        model=one.model.name if one.model is not None else None,
        version=one.model.version if one.model is not None else None,
        path=one.asked.path,
        status=one.status,
        code=one.code,
        error=one.why if viewer.reads(one.asked.key) else "",
        at=_seconds(one.ended),
        total_ms=round(one.seconds * 1000, 4),
        phases=one.phases(),
        device=one.device,
        rows=one.rows,
        batch_rows=one.batch_rows,
    )
