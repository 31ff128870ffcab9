"""Prometheus' view: the models' numbers, the devices' states, the process."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import PlainTextResponse, StreamingResponse

from app.about import VERSION
from app.api.dependencies import GatewayOf
from app.api.server_metrics import counter, gauge, server_families, singles
from app.codec.media import media_type_of, quality_of
from app.gateway import Gateway
from app.observe.exemplars import JournalExemplars
from app.observe.exposition import (
    CONTENT_TYPE,
    END,
    OPENMETRICS_TYPE,
    Family,
    render_families,
    render_models,
)
from app.observe.machine import memory
from app.observe.metrics import ModelMetrics
from app.observe.processes import use_of
from app.repository.devices import DeviceSummary
from app.repository.model_life import State
from app.serving.stateful import StatefulScheduler
from engine import DeviceState, ModelRunner

router = APIRouter(tags=["metrics"])

#: The states that are counted: the protocol's, and one for models that are not in
#: memory.
_STATES = {
    "READY": (State.READY,),
    "ON_DEMAND": (State.ON_DEMAND,),
    "LOADING": (State.LOADING,),
    "UNLOADING": (State.DRAINING,),
    "UNAVAILABLE": (State.FAILED, State.UNLOADED),
}


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=PlainTextResponse,
    responses={
        200: {
            "content": {"application/openmetrics-text": {"schema": {"type": "string"}}}
        }
    },
)
async def metrics(
    gateway: GatewayOf, accept: Annotated[str, Header(include_in_schema=False)] = ""
) -> StreamingResponse:
    """Return counters under Triton's names, latency histograms, devices, the process.

    With `Accept: application/openmetrics-text` the format is OpenMetrics, with
    exemplars.
    """
    is_open = _wants_openmetrics(accept)
    return StreamingResponse(
        _render(gateway, is_open),
        media_type=OPENMETRICS_TYPE if is_open else CONTENT_TYPE,
    )


def _wants_openmetrics(accept: str) -> bool:
    kinds = accept.encode("latin-1", "replace").split(b",")
    return any(
        media_type_of(kind) == b"application/openmetrics-text" and quality_of(kind) > 0
        for kind in kinds
    )


async def _render(gateway: Gateway, is_open: bool) -> AsyncIterator[str]:
    models = gateway.metrics.models()
    journal = await gateway.whole_journal() if is_open else None
    for text in render_models(
        models,
        partial(_awaiting, gateway),
        gateway.models_busy.of({id(m): m.busy_ns for m in models}),
        None if journal is None else JournalExemplars(journal),
    ):
        yield text
        await asyncio.sleep(0)  # with hundreds of models, let requests run in between
    for text in render_families(_families(gateway), openmetrics=is_open):
        yield text
    if gateway.calls is not None:
        for text in gateway.calls.render(openmetrics=is_open):
            yield text
    if is_open:
        yield END


def _awaiting(gateway: Gateway, model: ModelMetrics) -> int:
    """Return the number of requests to a version that have not begun to run. It is 0
    for an ensemble, because its steps queue for their own models.
    """
    record = gateway.records.get(model.name)
    loaded = record and record.serving.get(int(model.version))
    if not loaded or not isinstance(loaded.runner, ModelRunner):
        return 0
    waiting = loaded.runner.stats.awaiting + model.awaiting
    if isinstance(loaded.scheduler, StatefulScheduler):
        waiting += loaded.scheduler.waiting
    return waiting


def _families(gateway: Gateway) -> Iterator[Family]:
    yield _answers(gateway)
    yield from _devices(gateway)
    yield from _repository(gateway)
    yield from _workers(gateway)
    yield gauge("popgate_info", "Version", [({"version": VERSION}, 1)])
    yield from server_families(gateway)
    yield from _machine(gateway)
    yield from _process(gateway)


def _answers(gateway: Gateway) -> Family:
    answers = sorted(gateway.metrics.all_answers().items())
    return counter(
        "popgate_http_responses_total",
        "Answers written to clients, by route, status, error code and key",
        [(_answer_labels(*labels), count) for labels, count in answers],
    )


def _answer_labels(route: str, status: str, code: str, key: str) -> dict[str, str]:
    labels = {"code": code, "key": key, "route": route, "status": status}
    return {name: value for name, value in labels.items() if value}


def _devices(gateway: Gateway) -> Iterator[Family]:
    devices = gateway.devices.summaries()
    shares = gateway.devices_busy.of({d.id: d.busy_ns for d in devices})
    by_device: tuple[tuple[str, str, str, Callable[[DeviceSummary], float]], ...] = (
        ("popgate_device_up", "gauge", "1 if the device process runs",
         lambda d: d.state == DeviceState.READY.value),
        ("popgate_device_restarts_total", "counter",
         "Restarts of the device process after it was lost",
         lambda d: d.restarts),
        ("popgate_device_in_flight", "gauge",
         "Requests in the device's queues or running on it", lambda d: d.in_flight),
        ("popgate_device_threads", "gauge",
         "Threads that a model may use on the device", lambda d: d.threads),
        ("popgate_device_busy_seconds_total", "counter",
         "Time that the device has run models, for requests with any outcome",
         lambda d: d.busy_ns / 1e9),
        ("popgate_device_utilization", "gauge",
         "Share of the time that the device runs models [0.0 - 1.0]",
         lambda d: min(1.0, shares[d.id])),
    )  # fmt: skip
    for name, kind, text, value in by_device:
        yield Family(name, kind, text, [({"device": d.id}, value(d)) for d in devices])


def _repository(gateway: Gateway) -> Iterator[Family]:
    records, budget = gateway.records, gateway.budget
    yield gauge(
        "popgate_models",
        "Models of the repository by state",
        [({"state": s}, len(records.names_in(*all_))) for s, all_ in _STATES.items()],
    )
    yield gauge(
        "popgate_model_bytes",
        "Memory of a loaded model, as --model-memory counts it",
        [
            ({"model": record.name, "version": str(number)}, loaded.memory)
            for record in records.all()
            for number, loaded in sorted(record.serving.items())
        ],
    )
    yield from singles(
        ("popgate_model_memory_bytes", "gauge",
         "Memory of all loaded models, as --model-memory counts it",
         budget.used),
        ("popgate_model_memory_limit_bytes", "gauge",
         "Memory limit for all models together (--model-memory); 0 without a limit",
         budget.limit),
        ("popgate_ready", "gauge", "1 if the readiness check succeeds",
         gateway.readiness().ready),
    )  # fmt: skip
    certificate = gateway.certificate
    if certificate is not None and (expires := certificate.expires) is not None:
        name = "popgate_certificate_expiry_timestamp_seconds"
        yield gauge(name, "Expiry of the server's certificate", [({}, expires)])


def _workers(gateway: Gateway) -> Iterator[Family]:
    if workers := gateway.others.states():
        yield gauge(
            "popgate_worker_up",
            "1 if the process that accepts connections runs",
            [({"worker": str(w.number)}, w.pid > 0) for w in workers],
        )
        yield counter(
            "popgate_worker_restarts_total",
            "Restarts of the process after it was lost",
            [({"worker": str(w.number)}, w.restarts) for w in workers],
        )


def _machine(gateway: Gateway) -> Iterator[Family]:
    """Yield the machine, under the names that dashboards for Triton have."""
    total, used = memory()
    return singles(
        ("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]",
         gateway.processors.utilization()),
        ("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes",
         total),
        ("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", used),
    )  # fmt: skip


def _process(gateway: Gateway) -> Iterator[Family]:
    """Yield the gateway's own process, under the names of Prometheus' clients."""
    usage, own = resource.getrusage(resource.RUSAGE_SELF), use_of(os.getpid())
    return singles(
        ("process_start_time_seconds", "gauge", "Start time since 1970",
         gateway.started_at),
        ("process_cpu_seconds_total", "counter", "User and system CPU time",
         usage.ru_utime + usage.ru_stime),
        ("process_resident_memory_bytes", "gauge", "Resident memory",
         0 if own is None else own.resident),
        ("process_open_fds", "gauge", "Open file descriptors",
         len(os.listdir("/proc/self/fd"))),
        ("process_threads", "gauge", "Threads", threading.active_count()),
    )  # fmt: skip
