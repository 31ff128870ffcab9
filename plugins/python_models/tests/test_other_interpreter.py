"""Another interpreter, which has what we need and nothing of ours.

Covers: plugins/python_models/src/popgate_python_files/other_interpreter.py.
"""

from __future__ import annotations

import re
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import msgpack
import msgspec
import numpy as np
import pytest

import engine
from engine import (
    DeviceLost,
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    PythonOptions,
)
from popgate_python_files import other_interpreter, read_python_model

MODEL = """
import importlib.util
import sys
import numpy as np

from popgate import InvalidInput, Model

class Tells(Model):
    inputs = {"names": "BYTES[-1]"}
    outputs = {"there": "BOOL[-1]", "prefix": "BYTES[]"}
    batching = False
    def __call__(self, names):
        there = [importlib.util.find_spec(n.decode()) is not None for n in names]
        return {"there": there, "prefix": np.array(sys.prefix, object)}
"""


def interpreter(folder: Path, packages: Iterable[Path]) -> Path:
    """A virtual environment that has these packages and no others."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "lib" / version / "site-packages"
    for package in packages:
        libraries = package.parent / f"{package.name}.libs"
        for each in (package, libraries) if libraries.exists() else (package,):
            (site / each.name).symlink_to(each)
    return folder / "bin" / "python"


def places() -> list[Path]:
    return [Path(str(m.__file__)).parent for m in (np, msgpack, msgspec)]


def test_another_interpreter_runs_a_model(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", places())
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    options = PythonOptions(interpreter=str(python))
    with DeviceManager("cpu:1").create_python_device(options) as device:
        model = read_python_model(device, file)
        config = ModelRunnerConfig(replica_to_device={0: device})
        with ModelRunner(model, config) as runner:
            names = ["engine", "popef_io", "numpy", "onnxruntime", "app", "pytest"]
            found = runner.execute({"names": np.array(names, object)})
            assert found["there"].tolist() == [True, True, True, False, False, False]
            assert found["prefix"].item() == str(tmp_path / "env").encode()


def test_what_an_interpreter_lacks_is_said(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", [])
    options = PythonOptions(interpreter=str(python))
    expected = f"{re.escape(str(python))} .* does not have numpy, msgpack, msgspec"
    with pytest.raises(DeviceLost, match=expected):
        DeviceManager("cpu:1").create_python_device(options)


def test_nothing_else_is_lent() -> None:
    root = str(Path(engine.__file__).parents[1])
    finder = other_interpreter.LentFinder({"engine": root, "popef_io": root})
    assert finder.find_spec("engine") is not None
    assert finder.find_spec("app") is None
    assert other_interpreter.missing() == ""
