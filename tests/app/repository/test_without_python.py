"""Reading models from Python files needs a plugin."""

from __future__ import annotations

import subprocess
import sys

from app.repository.python_models import NO_PLUGIN
from tests.app.served import ROOT

BARE = """
import importlib.metadata
importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints()
from app.repository.python_models import python_reader
from engine import InvalidConfig
try:
    python_reader()
except InvalidConfig as error:
    print(error)
"""


def test_without_its_plugin() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == NO_PLUGIN
