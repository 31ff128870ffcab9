"""Which extensions `/v2` lists."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.config.extensions import ALWAYS, SHARED_MEMORY, listed_extensions
from app.settings import Settings


def test_what_works_is_listed() -> None:
    assert listed_extensions("", shared_memory=False) == list(ALWAYS)
    assert listed_extensions("", shared_memory=True) == [*ALWAYS, SHARED_MEMORY]


def test_a_choice_of_it() -> None:
    chosen = Settings(server_extensions=f"trace, {SHARED_MEMORY},").server_extensions
    assert listed_extensions(chosen, shared_memory=True) == ["trace", SHARED_MEMORY]
    assert listed_extensions(chosen, shared_memory=False) == ["trace"]


def test_nothing_else_can_be_chosen() -> None:
    with pytest.raises(ValidationError, match="cuda_shared_memory"):
        Settings(server_extensions="trace,cuda_shared_memory")
