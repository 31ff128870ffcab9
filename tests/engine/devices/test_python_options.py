"""How the process of a Python model is started, and where no plugin runs such models.

Covers: engine/devices/python_options.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.app.served import ServedGateway

#: Hides the plugin from a process.
WITHOUT = """
import importlib.metadata as metadata
found = (p for one in metadata.distributions() for p in one.entry_points)
kept = metadata.EntryPoints(p for p in found if p.group != "popgate.python_processes")
metadata.entry_points = lambda **wanted: kept.select(**wanted)
"""
#: The process of a test may have imported the function before.
ANEW = "import engine.devices.python_options as options\noptions._kind.cache_clear()\n"
ANEW += "options.entry_points = metadata.entry_points\n"
WHY = "no plugin that runs Python models is installed"


def test_programs_are_told_what_is_missing() -> None:
    program = f"{WITHOUT}\nfrom engine import DeviceManager, PythonOptions\n"
    program += "DeviceManager('cpu:1').create_python_device(PythonOptions())"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"InvalidConfig: {WHY} (entry point of " in found.stderr


def test_a_served_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("")
    with ServedGateway(tmp_path, "--allow-python", first=WITHOUT + ANEW) as gateway:
        gateway.wait_line(WHY)
        assert WHY in gateway.client.get("/v1/models/m").json()["reason"]
