"""Metrics of limits, processes and model sources for `/metrics`.

Each limit stands beside the amount in use, so that an alert can compare the two.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from app.gateway import Gateway
from app.observe.exposition import Family
from app.observe.processes import use_of
from app.repository.model_life import State
from engine import ModelRunner

#: Labels and a value.
Sample: TypeAlias = tuple[Mapping[str, str], float]


def gauge(name: str, text: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "gauge", text, samples)


def counter(name: str, text: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "counter", text, samples)


def singles(*rows: tuple[str, str, str, float]) -> Iterator[Family]:
    """Yield metrics without labels: each has a name, a type, a help text, a value."""
    for name, kind, text, value in rows:
        yield Family(name, kind, text, [({}, value)])


def server_families(gateway: Gateway) -> Iterator[Family]:
    """Yield the families of one server, of all its processes."""
    yield from _bounds(gateway)
    yield from _queues(gateway)
    yield from _versions(gateway)
    yield from _sources(gateway)
    yield from _processes(gateway)


def _bounds(gateway: Gateway) -> Iterator[Family]:
    own = gateway.own()
    _, most = gateway.connections.count()
    workers = len(gateway.others.states())
    limit = gateway.settings.max_connections or most * max(1, workers)
    return singles(
        ("popgate_connections", "gauge",
         "Open connections of clients", own.connections),
        ("popgate_connections_limit", "gauge",
         "Most connections allowed (--max-connections)", limit),
        ("popgate_transfer_memory_bytes", "gauge",
         "Memory of bodies and answers in transit", gateway.transfers.used),
        ("popgate_transfer_memory_limit_bytes", "gauge",
         "Memory limit for bodies and answers in transit (--transfer-memory)",
         gateway.transfers.most),
        ("popgate_log_lines_dropped_total", "counter",
         "Log lines that could not be written, or not in time", own.lines_dropped),
        ("popgate_spans_dropped_total", "counter",
         "Requests whose spans were dropped", own.spans_dropped),
    )  # fmt: skip


def _queues(gateway: Gateway) -> Iterator[Family]:
    limits: list[Sample] = []
    replicas: list[Sample] = []
    for record in gateway.records.all():
        for number, loaded in sorted(record.serving.items()):
            labels = {"model": record.name, "version": str(number)}
            runner = loaded.runner
            devices = runner.devices if isinstance(runner, ModelRunner) else ()
            ids = sorted({device.id for device in devices})
            replicas += [({"device": d, **labels}, 1.0) for d in ids]
            limit = loaded.config.max_queue_size * max(1.0, len(devices))
            limits.append((labels, limit))
    text = "Most requests in all instances of the model (max_queue_size of each)"
    yield gauge("popgate_model_queue_limit", text, limits)
    text = "1 for each device that runs the model"
    yield gauge("popgate_model_replica", text, replicas)


def _versions(gateway: Gateway) -> Iterator[Family]:
    records = gateway.records.all()
    states = Counter(v.state for record in records for v in record.versions.values())
    yield gauge(
        "popgate_model_versions",
        "Versions of models by state",
        [({"state": state.name}, states[state]) for state in State],
    )
    yield gauge(
        "popgate_model_last_load_success",
        "0 if a version of the model failed to load, even if another serves",
        [({"model": record.name}, not record.problem) for record in records],
    )


def _sources(gateway: Gateway) -> Iterator[Family]:
    polls = gateway.polls
    if polls is not None:
        yield from singles(
            ("popgate_repository_poll_failures_total", "counter",
             "Failed scans of the model repository", polls.failed),
            ("popgate_repository_last_poll_timestamp_seconds", "gauge",
             "Time of the last scan of the model repository; 0 if there was none",
             polls.polled_at),
        )  # fmt: skip
    looks = sorted(gateway.control.watch.looks().items())
    if looks:
        yield counter(
            "popgate_remote_failures_total",
            "Failed checks for a new version of a remote model",
            [({"model": name}, look.failures) for name, look in looks],
        )
        yield gauge(
            "popgate_remote_last_success_timestamp_seconds",
            "Time of the last successful check for a new version of a remote model; 0 "
            "if there was none",
            [({"model": name}, look.succeeded_at) for name, look in looks],
        )


def _pids(gateway: Gateway) -> Iterator[tuple[str, str, int | None]]:
    """Yield kind, name and id of each process."""
    yield "gateway", "gateway", os.getpid()
    for worker in gateway.others.states():
        yield "worker", f"worker:{worker.number}", worker.pid or None
    for device in gateway.devices.summaries():
        kind = "python" if device.id.startswith("python:") else "device"
        yield kind, device.id, device.pid


def _processes(gateway: Gateway) -> Iterator[Family]:
    found = [
        ({"kind": kind, "process": name}, use)
        for kind, name, pid in _pids(gateway)
        if pid is not None and (use := use_of(pid)) is not None
    ]
    yield gauge(
        "popgate_process_resident_memory_bytes",
        "Resident memory of a server process, including shared memory",
        [(labels, use.resident) for labels, use in found],
    )
    yield counter(
        "popgate_process_cpu_seconds_total",
        "Processor time of a server process since its start",
        [(labels, use.cpu_seconds) for labels, use in found],
    )
