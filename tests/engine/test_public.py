"""What `engine` offers, and when it is imported.

Covers: engine/public.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import engine
from engine import public


def _run(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.split()


def test_all_names_are_found() -> None:
    for name in public.__all__:
        assert getattr(engine, name) is getattr(public, name)
    assert {*public.__all__} <= {*dir(engine)}


def test_a_name_that_is_none() -> None:
    with pytest.raises(AttributeError, match="'engine' has no attribute 'Modelrunner'"):
        engine.Modelrunner  # type: ignore[attr-defined]  # noqa: B018


def test_the_first_name_brings_the_rest_and_modules_are_found_too() -> None:
    program = (
        "import sys, engine; print('engine.public' in sys.modules);"
        "print(engine.errors.__name__, 'engine.public' in sys.modules);"
        "from engine import *; print(ModelRunner.__name__)"
    )
    assert _run(program) == ["False", "engine.errors", "False", "ModelRunner"]


def test_a_device_process_imports_little_of_its_clients() -> None:
    program = (
        "import sys, engine.worker.device_process;"
        "print(*(name for name in sys.modules"
        " if name == 'engine.public' or name.startswith(('engine.runner', 'asyncio',"
        " 'engine.devices', 'engine.compiler', 'popgate_onnx', 'onnxruntime',"
        " 'importlib.metadata'))))"
    )
    assert _run(program) == []
