"""Numbers of requests in several processes."""

from __future__ import annotations

import os

from engine.runner.request_numbers import process_of, request_numbers
from tests.engine import forks


def test_a_forked_process_has_numbers_of_its_own() -> None:
    def look() -> None:
        number = next(request_numbers())
        assert process_of(number) == os.getpid()

    look()
    assert forks.status_of(forks.fork(look)) == 0
