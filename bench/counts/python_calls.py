"""Python calls of one request in the main threads of both processes."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

from bench import calls
from bench.cases.scenarios import Scenario
from bench.counts.cases import number_of, requests, served


def python_calls(cases: Collection[Scenario]) -> dict[str, dict[str, int]]:
    """Count the calls of our functions that one request of each case makes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "counts")
        with served(cases, calls.counting(folder)) as server:
            return {
                case.name: _described(
                    calls.count_requests(
                        server, requests(case, number_of(case)), folder
                    )
                )
                for case in cases
            }


def _described(found: calls.RequestPath) -> dict[str, int]:
    return {
        "gateway": found.gateway.total,
        "device": found.device.total,
        "files": found.files,
    }
