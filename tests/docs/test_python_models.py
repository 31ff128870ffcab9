"""The models of docs/python-models.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    PythonOptions,
    read_python_model,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python-models.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (models/\S+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize(
    ("path", "texts", "answer"),
    [
        ("models/sentiment/1/model.py", [b"great and fine", b"no"], {"score": [2, 0]}),
        ("models/length/1/model.py", [b"four", b""], {"output": [4, 0]}),
    ],
)
def test_the_models_run(
    tmp_path: Path, path: str, texts: list[bytes], answer: dict[str, Any]
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(FILES[path])
    device = DeviceManager("cpu:1").create_python_device(PythonOptions())
    model = read_python_model(device, file)
    config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
    with ModelRunner(model, config) as runner:
        assert runner.batching
        found = runner.execute({"text": np.array(texts, object)})
        assert {name: list(value) for name, value in found.items()} == answer


def test_all_models_of_the_page_are_tested() -> None:
    assert sorted(FILES) == ["models/length/1/model.py", "models/sentiment/1/model.py"]
