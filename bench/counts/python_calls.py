"""Python calls of one request in the main threads of both processes."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

from bench import calls
from bench.cases.scenarios import Scenario
from bench.counts.cases import is_large, requests, served

#: Functions called for each piece of a large body. The kernel decides in how many
#: pieces a body arrives, so each of them counts once.
_OF_PIECES: Final = (
    "app/http/connection/protocol.py GatewayProtocol.data_received",
    "app/http/connection/protocol.py GatewayProtocol.read_message",
    "app/http/connection/protocol.py GatewayProtocol._count_body",
    "app/http/connection/framing.py Framer.feed",
    "app/http/connection/framing.py Framer._count_past",
    "app/http/connection/intake.py Intake.spend",
    "app/http/connection/turns.py ReadBudget.spend",
    "app/serving/transfer_memory.py Share.add",
)


def python_calls(cases: Collection[Scenario]) -> dict[str, dict[str, int]]:
    """Count the calls of our functions that one request of each case makes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "counts")
        with served(cases, calls.counting(folder)) as server:
            return {
                case.name: _described(
                    calls.count_requests(server, requests(case), folder),
                    is_large=is_large(case),
                )
                for case in cases
            }


def _described(found: calls.RequestPath, *, is_large: bool) -> dict[str, int]:
    counts = found.gateway.counts
    again = sum(max(0, counts[name] - 1) for name in _OF_PIECES) if is_large else 0
    return {
        "gateway": found.gateway.total - again,
        "device": found.device.total,
        "files": found.files,
    }
