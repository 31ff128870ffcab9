"""The pages that list settings list all of them, with the real defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from app.config.config_keys import default_of, section_of
from app.config.model_config import ModelConfig
from app.settings import Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"


def raw_rows() -> dict[str, str]:
    """First cell to second cell, of all tables of the page."""
    lines = (DOCS / "configuration.md").read_text().splitlines()
    cells = [line.split("|") for line in lines if line.startswith("| `")]
    return {row[1].strip(" `[]"): row[2].strip() for row in cells}


def rows() -> dict[str, str]:
    """The same without quotes."""
    return {name: cell.strip('`"') for name, cell in raw_rows().items()}


def test_every_option_of_the_server() -> None:
    shown = rows()
    defaults = Settings()
    for name in Settings.model_fields:
        option = "--" + name.replace("_", "-")
        assert option in shown
        value = getattr(defaults, name)
        sizes = ("max_body_size", "shared_memory_limit")
        if isinstance(value, float | int) and name not in sizes:
            expected = "off" if value is False else f"{value:g}"
            assert shown[option] == expected
        if isinstance(value, str) and value:
            assert shown[option] == value


def keys_of(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a section and of those in it, with its default."""
    for item in fields(kind):
        yield f"{prefix}{item.name}", default_of(item)
        inner = section_of(item)
        if inner is not None:
            yield from keys_of(inner, f"{prefix}{item.name}.")


def test_every_key_of_a_model() -> None:
    """A default in code quotes is the value; in words it is what an empty one means."""
    shown = raw_rows()
    for name, value in keys_of(ModelConfig):
        assert name in shown
        cell = shown[name]
        if cell.startswith("`") and isinstance(value, float | int):
            assert cell.strip("`") == str(value).lower()
        elif cell.startswith("`"):
            assert value != ""
        else:
            assert not value
