"""Secrets in files that other users can open, and what the server says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.file_modes import exposure_of
from tests.app.served import ServedGateway, add

BOTH = "its group and all users"


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (0o600, ""),
        (0o400, ""),
        (0o640, "its group can read it (mode 0640)"),
        (0o604, "all users can read it (mode 0604)"),
        (0o620, "its group can write it (mode 0620)"),
        (0o666, f"{BOTH} can read it, and {BOTH} can write it (mode 0666)"),
    ],
)
def test_who_can_open_a_file(tmp_path: Path, mode: int, text: str) -> None:
    path = tmp_path / "secret"
    assert exposure_of(path) == ""
    path.touch()
    path.chmod(mode)
    assert exposure_of(path) == text


@pytest.mark.parametrize("workers", [1, 2])
def test_the_server_warns(tmp_path: Path, workers: int) -> None:
    add(tmp_path / "models", "m")
    keys = tmp_path / "keys.toml"
    keys.write_text("anonymous = ['infer']\n")
    more = ("--workers", str(workers)) if workers > 1 else ()
    for mode in (0o644, 0o600):
        keys.chmod(mode)
        options = ("--keys", str(keys), *more)
        with ServedGateway(tmp_path / "models", *options) as gateway:
            gateway.wait_ready()
            gateway.stop()
            said = [line for line in gateway.lines if "chmod 600" in line]
        assert len(said) == (mode == 0o644)
        assert all("(--keys): its group and all users can read it" in x for x in said)
