"""`popgate validate` of folders that are filled with anything."""

from __future__ import annotations

import json
from pathlib import Path

from tests.app.repository.test_hostile_folders import fill
from tests.app.served import run_popgate


def test_validate_tells_what_is_wrong_with_each(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    bad = fill(root)
    cache = tmp_path / "cache"
    found = run_popgate("validate", root, "--json", "--cache-dir", cache)
    assert found.returncode == 1, found.stderr
    document = json.loads(found.stdout)
    wrong = {model["name"] for model in document["models"] if model["problems"]}
    assert wrong == bad
