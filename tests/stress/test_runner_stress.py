"""Threads on a runner for a moment; `python -m bench.runner_stress` takes longer."""

from __future__ import annotations

import pytest

from bench.runner_stress import run


@pytest.mark.stress
@pytest.mark.parametrize("kill", [False, True], ids=["in peace", "killed"])
def test_every_row_is_right_and_every_thread_ends(kill: bool) -> None:
    stress = run(1.5, 16, 4, kill=kill)
    assert stress.wrong == []
    assert stress.counts["requests"] > 0
    if kill:
        assert stress.counts["restarts"] > 0
    else:
        assert stress.counts["lost"] == stress.counts["restarts"] == 0
