"""Everything that can happen to a request, at once: `bench.isolation`."""

from __future__ import annotations

import numpy as np
import pytest

from bench.cases.payloads import Payload
from bench.drivers.client import Answer
from bench.isolation import KINDS, Asked, complaint, run_all


@pytest.mark.stress
def test_each_gets_what_it_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all(seconds=2.0, count=24) == []
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in KINDS)
    assert " x 200" in shown
    assert " x 400" in shown


def test_what_is_wrong_is_seen() -> None:
    def asked(kind: str, timeout: float = 0.0) -> Asked:
        return Asked(kind, Payload({}, b""), timeout, np.zeros((1, 1)))

    def answer(status: int, body: bytes = b"") -> Answer:
        return Answer(status, {}, body)

    other = b'{"outputs":[{"name":"y","shape":[1,1],"datatype":"FP64","data":[7]}]}'
    assert "another's" in complaint(asked("ordinary"), answer(200, other), 0.0, 0.0)
    assert "500" in complaint(asked("ordinary"), answer(500), 0.0, 0.0)
    assert "200" in complaint(asked("poisoned"), answer(200), 0.0, 0.0)
    assert "504 without" in complaint(asked("ordinary"), answer(504), 0.0, 0.0)
    assert "without Retry-After" in complaint(asked("ordinary"), answer(429), 0.0, 0.0)
    late = complaint(asked("short", 0.1), answer(504), 9.0, 0.0)
    assert "after 9.000 s" in late
    assert complaint(asked("short", 0.1), answer(504), 9.0, 9.0) == ""
