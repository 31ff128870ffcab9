"""A Python model's own metrics, which the server adds to its metrics.

The model's process keeps the values. Once the model has a metric, a thread reports
changes to the server, a few times a second and at the end.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
#: Seconds between two messages.
INTERVAL = 0.25
MAX_FAMILIES = 100
#: The most series of all families of a model together. Each series has its own labels.
MAX_SERIES = 1000
MAX_BUCKETS = 100
#: The most bytes of a name, and of a description or all labels of a series.
MAX_NAME, MAX_TEXT = 200, 1000
#: Prefixes of the server's own metrics, which a model may not use.
TAKEN = ("nv_", "popgate_", "process_")
#: The number of largest metrics that fit into one message.
_AT_ONCE = 20
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]
#: Name, kind, text, labels, bounds and values of a series.
Row = tuple[str, str, str, Labels, tuple[float, ...], tuple[float, ...]]


class MetricSeries:
    """The metric of a family with these labels. For any thread."""

    def __init__(self, family: MetricFamily, labels: Labels, bounds: tuple[float, ...]):
        self._family, self.labels, self.bounds = family, labels, bounds
        size = len(bounds) + 2 if family.kind == HISTOGRAM else 1
        #: The value. For a histogram, the count in each bucket and the sum.
        self._values = [0.0] * size

    def increment(self, by: float = 1.0) -> None:
        """Increase a counter by 0 or more, or change a gauge."""
        self._check("increment", COUNTER, GAUGE)
        if self._family.kind == COUNTER and not by >= 0:
            raise ValueError(
                f"counter {self._family.name} can only increase by at least 0, got {by}"
            )
        with self._family.owner.changing(self):
            self._values[0] += float(by)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._check("set", GAUGE)
        with self._family.owner.changing(self):
            self._values[0] = float(value)

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        self._check("observe", HISTOGRAM)
        with self._family.owner.changing(self):
            self._values[bisect_left(self.bounds, value)] += 1
            self._values[-1] += float(value)

    def value(self) -> float:
        """Return the value of a counter or gauge in this process."""
        self._check("value", COUNTER, GAUGE)
        return self._values[0]

    def _check(self, what: str, *kinds: str) -> None:
        if self._family.kind not in kinds:
            name, kind = self._family.name, self._family.kind
            raise ValueError(f"{name} is a {kind}, which has no {what}")

    def row(self) -> Row:
        """Return the name, kind, text, labels, bounds and present values."""
        family = self._family
        known = family.name, family.kind, family.text, self.labels, self.bounds
        return *known, tuple(self._values)

    def __repr__(self) -> str:
        return f"<MetricSeries {self._family.name} {dict(self.labels)}>"


class MetricFamily:
    """The metrics of one name, distinguished by their labels. For any thread."""

    def __init__(self, owner: OwnMetrics, name: str, text: str, kind: str) -> None:
        self.owner, self.name, self.text, self.kind = owner, name, text, kind
        self._series: dict[Labels, MetricSeries] = {}

    def series(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] = ()
    ) -> MetricSeries:
        """Return the series with these labels, the same object each time.

        A histogram has `buckets`, their ascending upper bounds. Raises ValueError.
        """
        key = self._labels(labels or {})
        bounds = tuple(map(float, buckets or ()))
        ascend = all(a < b for a, b in pairwise(bounds)) and all(map(isfinite, bounds))
        if self.kind == HISTOGRAM:
            if not (ascend and 0 < len(bounds) <= MAX_BUCKETS):
                raise ValueError(
                    f"histogram {self.name} needs 1 to {MAX_BUCKETS} ascending, finite "
                    f"buckets, got {list(bounds)[: MAX_BUCKETS + 1]}"
                )
        elif bounds:
            raise ValueError(f"{self.name} is a {self.kind}, which has no buckets")
        found = self.owner.add(self._series, MetricSeries(self, key, bounds))
        if found.bounds != bounds:
            raise ValueError(
                f"{self.name} {dict(key)} already has the buckets {list(found.bounds)}"
            )
        with self.owner.changing(found):
            return found

    def _labels(self, labels: Mapping[str, str]) -> Labels:
        for label, value in labels.items():
            if not isinstance(label, str) or not _LABEL.fullmatch(label):
                raise ValueError(
                    f"{label!r} cannot be a label of {self.name}: expected letters, "
                    "digits and _, without a leading digit or __"
                )
            if not isinstance(value, str):
                kind = type(value).__name__
                raise ValueError(
                    f"label {label!r} of {self.name} must be a string, got {kind}"
                )
        if self.kind == HISTOGRAM and "le" in labels:
            raise ValueError(
                f"histogram {self.name} sets the label 'le' itself; use another name"
            )
        found = tuple(sorted(labels.items()))
        if sum(len((k + v).encode()) for k, v in found) > MAX_TEXT:
            raise ValueError(f"the labels of {self.name} exceed {MAX_TEXT} bytes")
        return found

    def __repr__(self) -> str:
        return f"<MetricFamily {self.kind} {self.name}>"


class OwnMetrics:
    """The metrics of a model in one process. For any thread.

    `tell` sends rows of metrics to the server.
    """

    def __init__(self, tell: Callable[[Sequence[Row]], None] | None = None) -> None:
        self._tell = tell
        self._families: dict[str, MetricFamily] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._changed: dict[MetricSeries, None] = {}
        self._news, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def family(self, name: str, text: str, kind: str) -> MetricFamily:
        """Return the metrics of a name, the same object each time.

        Raises ValueError.
        """
        if not (_NAME.fullmatch(name) and len(name) <= MAX_NAME):
            raise ValueError(f"{name[:MAX_NAME]!r} cannot be the name of a metric")
        if name.startswith(TAKEN):
            raise ValueError(
                f"{name!r} cannot be the name of a model's metric: names that begin "
                f"with {', '.join(TAKEN)} belong to the server"
            )
        if len(text.encode()) > MAX_TEXT:
            raise ValueError(f"the description of {name} exceeds {MAX_TEXT} bytes")
        with self._lock:
            found = self._families.get(name)
            if found is None and len(self._families) >= MAX_FAMILIES:
                raise ValueError(
                    f"cannot add {name}: a model may have {MAX_FAMILIES} metrics at "
                    "most"
                )
            found = found or MetricFamily(self, name, text, kind)
            if found.kind != kind:
                raise ValueError(f"{name} exists already as a {found.kind}, got {kind}")
            self._families[name] = found
        return found

    def add(
        self, known: dict[Labels, MetricSeries], series: MetricSeries
    ) -> MetricSeries:
        """Return the known series with the labels of `series`, else `series`.

        Raises ValueError.
        """
        with self._lock:
            found = known.get(series.labels)
            if found is not None:
                return found
            if self._count >= MAX_SERIES:
                raise ValueError(
                    "the metrics of a model may have at most "
                    f"{MAX_SERIES} combinations of labels"
                )
            self._count += 1
            known[series.labels] = series
        return series

    @contextmanager
    def changing(self, series: MetricSeries) -> Iterator[None]:
        """Lock the metrics while a value changes. The change is reported later."""
        with self._lock:
            yield
            self._changed[series] = None
            if self._thread is None and self._tell is not None:
                self._thread = threading.Thread(
                    target=self._run, name="metrics", daemon=True
                )
                self._thread.start()
        self._news.set()

    def _run(self) -> None:
        while self._news.wait() and not self._ended.wait(INTERVAL):
            self._news.clear()
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            changed = [series.row() for series in self._changed]
            self._changed.clear()
        for at in range(0, len(changed), _AT_ONCE):
            if self._tell is not None:
                self._tell(changed[at : at + _AT_ONCE])

    def close(self) -> None:
        """Report the last changes."""
        self._ended.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        self._flush()

    def __repr__(self) -> str:
        return f"<OwnMetrics {len(self._families)} families>"
