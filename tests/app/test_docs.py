"""The pages that list settings list all of them, with the real defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from app.cli.settings_options import declared_options
from app.config.config_keys import default_of, section_of
from app.config.model_config import ModelConfig
from app.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md"


def raw_rows() -> dict[str, str]:
    """First cell to second cell, of all tables of the page."""
    lines = PAGE.read_text().splitlines()
    cells = [line.split("|") for line in lines if line.startswith("| `")]
    return {row[1].strip(" `[]"): row[2].strip() for row in cells}


def settings_table() -> str:
    """The table of the server's settings, made of the options of `popgate serve`."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in declared_options():
        metavar = f" {option.metavar}" if option.metavar else ""
        names = ", ".join(f"`{name}`" for name in option.names[1:])
        also = f" (or {names})" if names else ""
        cell = f"`{option.names[0]}{metavar}`{also}".replace("|", r"\|")
        default = option.default or ("none" if option.metavar else "off")
        value = Settings.model_fields[option.name].default
        if value or type(value) is int:
            default = f"`{default}`"
        rows.append(f"| {cell} | {default} | {option.help} |")
    return "\n".join(rows) + "\n"


def with_settings_table(page: str) -> str:
    """The page, with the table as it has to be."""
    start = page.index("| option |")
    return page[:start] + settings_table() + page[page.index("\n\n", start) + 1 :]


def test_every_setting_of_the_server() -> None:
    page = PAGE.read_text()
    if page != with_settings_table(page):
        pytest.fail("run: python -m tests.app.test_docs")


def keys_of(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a section and of those in it, with its default."""
    for item in fields(kind):
        yield f"{prefix}{item.name}", default_of(item)
        inner = section_of(kind, item.name)
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


if __name__ == "__main__":
    PAGE.write_text(with_settings_table(PAGE.read_text()))
