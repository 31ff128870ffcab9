"""Traces of requests: when each reached which step.

A sample of the requests is written to one file, a JSON array in the form that Triton's
tools read. The server has settings for the sample, which settings of single models
override. Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from app.observe.journal import Answered
from app.settings import Settings
from app.spec import datatype_of
from engine import InvalidConfig, Tensor

logger = logging.getLogger(__name__)

LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
# The most elements of a tensor in a trace. Larger and empty tensors are left out,
# because readers of these files expect the data of every tensor.
MAX_TENSOR_ELEMENTS = 1 << 16
# The most bytes of such a tensor, because the event loop writes strings of any size.
MAX_TENSOR_BYTES = 8 * MAX_TENSOR_ELEMENTS
# About the most bytes of entries that wait for a file of their own, and the bytes of
# an entry without data.
MOST_WAITING = 16 << 20
_ENTRY = 1 << 10


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The settings of Triton's trace extension.

    One request of `rate` is traced, until `count` traces exist (-1: no limit). If
    `log_frequency` is 0, every trace is added to the trace file. If it is n, every n
    traces become a new file, with the trace file's name and a number. So do fewer if
    they have `MOST_WAITING` bytes.
    """

    level: tuple[str, ...] = ("OFF",)
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0

    @property
    def is_on(self) -> bool:
        return self.level != ("OFF",)


def timestamps(answered: Answered, sent: int, offset: int) -> list[dict[str, Any]]:
    """Return the steps under Triton's names, `offset` nanoseconds later."""
    began, decoded, encoding = answered.began, answered.decoded, answered.encoding
    # The durations come from the device and are placed on the gateway's clock.
    started = min(decoded + answered.queue_ns, encoding)
    computed = min(started + answered.compute_ns, encoding)
    steps = (
        ("HTTP_RECV_START", min(answered.arrived or began, began)),
        ("HTTP_RECV_END", began),
        ("REQUEST_START", began),
        ("QUEUE_START", decoded),
        ("COMPUTE_START", started),
        ("COMPUTE_INPUT_END", started),
        ("COMPUTE_OUTPUT_START", computed),
        ("COMPUTE_END", computed),
        ("REQUEST_END", answered.ended),
        ("HTTP_SEND_START", answered.ended),
        ("HTTP_SEND_END", sent),
    )
    return [{"name": name, "ns": ns + offset} for name, ns in steps]


class TraceFile:
    """A JSON array on disk that is complete after every write.

    An existing file is replaced at the first write. After an error (a full disk)
    nothing more is written, and the log says so once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._end = 0
        #: Whether an error has ended it.
        self.is_broken = False

    def append(self, entries: list[dict[str, Any]]) -> None:
        """Add `entries`, over the closing bracket of the array."""
        if self.is_broken:
            return
        text = b",\n".join(orjson.dumps(entry) for entry in entries) + b"\n]\n"
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._file = os.open(self.path, flags, 0o640)
            text = (b",\n" if self._end else b"[\n") + text
            written = os.pwrite(self._file, text, self._end)
            if written != len(text):
                raise OSError(errno.ENOSPC, "the disk is full")
            self._end += written - 3
        except OSError as e:
            self.is_broken = True
            logger.error("tracing stops: cannot write %s: %s", self.path, e)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __repr__(self) -> str:
        return f"<TraceFile {self.path} {self._end} bytes>"


class TritonTracer:
    """Samples the requests of a model, or of all that have no settings of their own."""

    def __init__(self, settings: TraceSettings, tracing: TritonTracing) -> None:
        self.settings = settings
        self.left = settings.count
        self._tracing = tracing
        self._seen = 0
        self._pending: list[dict[str, Any]] = []
        self._traces = self._waiting = 0

    def wants(self) -> bool:
        """Count the next request, and return whether it is in the sample."""
        self._seen += 1
        if self.left == 0 or self._seen % self.settings.rate:
            return False
        self.left -= self.left > 0
        return True

    def record(
        self,
        request_id: str,
        answered: Answered,
        sent: int,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
    ) -> None:
        """Write one request of the sample, which was handed to the connection at
        `sent`.
        """
        number = self._tracing.next_id()
        version = answered.model.version
        head: dict[str, Any] = {
            "id": number,
            "model_name": answered.model.name,
            "model_version": int(version) if version.isdecimal() else version,
        }
        if request_id:
            head["request_id"] = request_id
        entries = [head]
        if "TIMESTAMPS" in self.settings.level:
            stamps = timestamps(answered, sent, self._tracing.clock_offset)
            entries.append({"id": number, "timestamps": stamps})
        if "TENSORS" in self.settings.level:
            for activity, tensors in (
                ("TENSOR_QUEUE_INPUT", inputs),
                ("TENSOR_BACKEND_OUTPUT", outputs),
            ):
                entries += (
                    {"id": number, "activity": activity, "tensor": _shown(key, tensor)}
                    for key, tensor in tensors.items()
                    if 0 < math.prod(tensor.shape) <= MAX_TENSOR_ELEMENTS
                    and tensor.nbytes <= MAX_TENSOR_BYTES
                )
        self._write(entries)

    def flush(self) -> None:
        """Write the entries that wait for a file of their own."""
        if self._pending:
            self._tracing.write_numbered(self._pending)
        self._pending, self._traces, self._waiting = [], 0, 0

    def _write(self, entries: list[dict[str, Any]]) -> None:
        frequency = self.settings.log_frequency
        if not frequency:
            self._tracing.write(entries)
            return
        self._pending += entries
        self._traces += 1
        for entry in entries:
            self._waiting += _ENTRY + len(entry.get("tensor", {}).get("data", ""))
        if self._traces >= frequency or self._waiting >= MOST_WAITING:
            self.flush()

    def __repr__(self) -> str:
        return f"<TritonTracer {self.settings} seen={self._seen} left={self.left}>"


def _shown(name: str, tensor: Tensor) -> dict[str, str]:
    """Return a tensor in the form of Triton's traces: everything is a string."""
    data = ",".join(map(_element, tensor.numpy().reshape(-1).tolist()))
    shape = ",".join(map(str, tensor.shape))
    dtype = datatype_of(tensor.data_type).name
    return {"name": name, "data": data, "shape": shape, "dtype": dtype}


def _element(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    # Readers of these files turn any bare text into a number.
    return str(int(value) if isinstance(value, bool) else value)


class TritonTracing:
    """The trace settings of a server and its models, and the trace file.

    If `file` is None, nothing can be traced. `clock_offset` is the difference between
    the time since 1970 and the monotonic clock.
    """

    def __init__(
        self,
        file: Path | None = None,
        settings: TraceSettings | None = None,
        *,
        clock_offset: int = 0,
    ) -> None:
        self.initial = settings or TraceSettings()
        self.clock_offset = clock_offset
        self._on_change: list[Callable[[], None]] = []
        self._path = file
        self._file = TraceFile(file) if file is not None else None
        self._ids = itertools.count(1)
        self._numbers = itertools.count()
        self._has_failed = False
        # Changes of the initial settings (key None), and of single models over the
        # server's settings.
        self._changes: dict[str | None, dict[str, Any]] = {None: {}}
        self._tracers: dict[str | None, TritonTracer] = {
            None: TritonTracer(self.initial, self)
        }

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after every change of settings."""
        self._on_change.append(on_change)

    @property
    def path(self) -> str:
        """Return the trace file; empty if there is none."""
        return str(self._path) if self._path is not None else ""

    def tracer(self, model: str) -> TritonTracer | None:
        """Return the sampler of a model's requests; None if nothing is traced."""
        tracer = self._tracers.get(model) or self._tracers[None]
        on = self._file is not None and tracer.settings.is_on
        return tracer if on else None

    def settings(self, model: str | None = None) -> TraceSettings:
        """Return the settings of a model or the server; `count` is the number of traces
        left.
        """
        tracer = self._tracers.get(model) or self._tracers[None]
        return replace(tracer.settings, count=tracer.left)

    def update(self, model: str | None, changes: Mapping[str, Any]) -> None:
        """Change fields of the settings; None reverts a change."""
        mine = {**self._changes.get(model, {}), **changes}
        self._changes[model] = {k: v for k, v in mine.items() if v is not None}
        if model is not None and not self._changes[model]:
            del self._changes[model]
            gone = self._tracers.pop(model, None)
            if gone is not None:
                gone.flush()
        fresh = {model} if "count" in changes or "rate" in changes else set()
        server = replace(self.initial, **self._changes[None])
        for scope, changed in self._changes.items():
            wanted = replace(server, **changed)
            before = self._tracers.get(scope)
            if before is not None and before.settings == wanted and scope not in fresh:
                continue
            if before is not None:
                before.flush()
            self._tracers[scope] = TritonTracer(wanted, self)
        for tell in self._on_change:
            tell()

    def next_id(self) -> int:
        return next(self._ids)

    def write(self, entries: list[dict[str, Any]]) -> None:
        if self._file is not None:
            self._file.append(entries)

    def write_numbered(self, entries: list[dict[str, Any]]) -> None:
        """Write a numbered file beside the trace file, unless an earlier one failed."""
        if self._path is None or self._has_failed:
            return
        path = self._path.with_name(f"{self._path.name}.{next(self._numbers)}")
        file = TraceFile(path)
        file.append(entries)
        file.close()
        self._has_failed = file.is_broken

    def close(self) -> None:
        """Write the waiting entries, and trace nothing from now on."""
        for tracer in self._tracers.values():
            tracer.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        for tell in self._on_change:
            tell()

    def __iter__(self) -> Iterator[str]:
        """Yield the models that have settings of their own."""
        return (name for name in self._changes if name is not None)

    def __repr__(self) -> str:
        return f"<TritonTracing {asdict(self.settings())} models={list(self)}>"


def tracing_of(settings: Settings, clock_offset: int) -> TritonTracing:
    """Return the tracing of a server; an object of the group `popgate.tracers`.

    Raises `InvalidConfig` for a file that cannot be written.
    """
    path = settings.trace_file
    if path is not None:
        is_new = not path.exists()
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            os.close(os.open(path, flags, 0o640))
        except OSError as e:
            msg = f"--trace-file: cannot write {path}: {e.strerror}"
            raise InvalidConfig(msg) from None
        if is_new:
            path.unlink()
    levels = {"off": ("OFF",), "timestamps": ("TIMESTAMPS",)}
    level = levels.get(settings.trace_level, ("TIMESTAMPS", "TENSORS"))
    wanted = TraceSettings(level, settings.trace_rate, settings.trace_count)
    return TritonTracing(path, wanted, clock_offset=clock_offset)
