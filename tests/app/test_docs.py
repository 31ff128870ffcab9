"""The pages that list settings list all of them, with the real defaults."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from app.model_config import ModelConfig
from app.settings import Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"


def raw_rows() -> dict[str, str]:
    """First cell to second cell, of all tables of the page."""
    lines = (DOCS / "configuration.md").read_text().splitlines()
    cells = [line.split("|") for line in lines if line.startswith("| `")]
    return {row[1].strip(" `"): row[2].strip() for row in cells}


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


def test_every_key_of_a_model() -> None:
    """A default in code quotes is the value; in words it is what an empty one means."""
    shown = raw_rows()
    defaults = ModelConfig()
    for item in fields(ModelConfig):
        assert item.name in shown
        cell, value = shown[item.name], getattr(defaults, item.name)
        if cell.startswith("`") and isinstance(value, float | int):
            if item.name != "channel_memory":
                assert cell.strip("`") == str(value).lower()
        elif not cell.startswith("`"):
            assert not value
