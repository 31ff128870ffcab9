"""Adapters of Python models: packages that plugins install for other servers' files.

Here a package with an entry point is installed, and a device process runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import (
    DeviceManager,
    InvalidConfig,
    ModelRunner,
    ModelRunnerConfig,
    PythonOptions,
)
from popgate_python_files import adapters, read_python_model

ADAPTER = """
def adapt(module, declared):
    made = getattr(module, "DemoModel", None)
    if made is None:
        return None

    class Adapted:
        inputs = {"x": "FP32[-1,2]"}
        outputs = {"y": "FP32[-1,2]"}
        batching = True
        def load(self, context):
            self.model = made(declared["factor"])
        def __call__(self, x):
            return {"y": self.model.times(x)}
    return Adapted
"""
MODEL = """
from demo_server import scale

class DemoModel:
    def __init__(self, factor):
        self.factor = factor
    def times(self, x):
        return scale(x, self.factor)
"""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package `demo_server` and its entry point, as pip makes it."""
    folder = tmp_path / "installed"
    package, info = folder / "demo_server", folder / "demo_server-1.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("def scale(x, by):\n    return x * by\n")
    (package / "adapter.py").write_text(ADAPTER)
    (info / "METADATA").write_text("Name: demo-server\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[{adapters.GROUP}]\nDemoModel = demo_server.adapter\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    adapters._adapters.cache_clear()
    yield folder
    adapters._adapters.cache_clear()


def test_a_file_for_another_server_runs(demo: Path, tmp_path: Path) -> None:
    """The device process does not have the folder among its own."""
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    device = DeviceManager("cpu:1").create_python_device(PythonOptions())
    try:
        model = read_python_model(device, file, declared={"factor": 3})
        config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
        with ModelRunner(model, config) as runner:
            x = np.ones((1, 2), np.float32)
            assert runner.execute({"x": x})["y"].tolist() == [[3.0, 3.0]]
    finally:
        device.close()


def test_which_files_need_an_adapter(demo: Path) -> None:
    found = adapters.adapter_for(b"class DemoModel: ...")
    assert found == adapters.PythonAdapter("demo_server.adapter", str(demo))
    assert adapters.adapter_for(b"import demo_server") == found
    assert adapters.adapter_for(b"class Model: ...") == adapters.NO_ADAPTER


def test_an_adapter_that_is_not_there(demo: Path) -> None:
    (demo / "demo_server").rename(demo / "other")
    with pytest.raises(InvalidConfig, match="demo_server, an entry point of"):
        adapters.adapter_for(b"class DemoModel: ...")
