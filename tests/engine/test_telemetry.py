"""ONNX Runtime keeps nothing about its users and sends nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.engine import models

ROOT = Path(__file__).parents[2]
RUN = """
import sys
import numpy as np
from engine import ModelRunner
with ModelRunner(sys.argv[1]) as runner:
    print(runner.execute({"input": np.ones((1, 4), np.float32)})["output"].sum())
"""


def test_a_run_leaves_the_users_cache_alone(tmp_path: Path) -> None:
    model = models.affine(tmp_path / "model.popef")
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **{k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"},
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(model)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "12.0"
    assert list(home.rglob("*")) == []
