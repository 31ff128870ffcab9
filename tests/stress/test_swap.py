"""Models replaced in every way under load: no request fails, none is wrong."""

from __future__ import annotations

import pytest

from bench.swap import run


@pytest.mark.stress
def test_every_way_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(seconds=0, count=8, jobs_each=5) == []
    assert " 0 failed" in capsys.readouterr().out
