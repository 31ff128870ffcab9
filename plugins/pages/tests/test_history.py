"""The last hour in memory: points of differences, bounded."""

from __future__ import annotations

from app.errors import row_of
from app.observe.metrics import MetricsRegistry
from engine import QueueFull
from popgate_pages.history import MOST_MODELS, POINTS, Figures, History


def sees_all(name: str) -> bool:
    return True


def test_a_point_has_what_was_counted_since_the_one_before() -> None:
    metrics = MetricsRegistry()
    history = History()
    model = metrics.model("m", "1")
    for _ in range(4):
        model.success(5_000_000, 1_000_000, 2_000_000, rows=1, batch_rows=2)
    model.failure(row_of(QueueFull("full")))
    model.pending = 3
    history.look(metrics)
    metrics.model("m", "2").success(1_000_000, 0, 0, rows=1, batch_rows=1)
    history.look(metrics)
    history.look(metrics)
    first, second, third = history
    assert first.pending == 3
    assert first.models == {
        "m": Figures(4, 1, 4, 2, 20_000_000, 0, 4_000_000, 8_000_000, 0)
    }
    column = first.column(sees_all)
    means = {
        name: column[name] for name in ("batch", "latency", "queue", "compute", "wake")
    }
    assert means == {"batch": 2, "latency": 5, "queue": 1, "compute": 2, "wake": 2}
    assert column["rate"] == round(4 / first.seconds, 4)
    assert second.models["m"].answered == 1
    assert third.models == {}
    assert third.column(sees_all)["latency"] is None
    assert first.column(lambda name: False)["rate"] == 0


def test_it_is_bounded() -> None:
    metrics = MetricsRegistry()
    history = History()
    for number in range(MOST_MODELS + 5):
        for _ in range(number + 1):
            metrics.model(f"m{number}", "1").success(1, 0, 0, rows=1, batch_rows=1)
    history.look(metrics)
    (point,) = history
    assert len(point.models) == MOST_MODELS
    assert "m4" not in point.models
    for _ in range(POINTS + 1):
        history.look(metrics)
    assert len(list(history)) == POINTS
