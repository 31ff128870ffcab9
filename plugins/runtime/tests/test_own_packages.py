"""`popgate run` beside packages of the same names: device processes too take ours."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.engine import models
from tests.popgate.test_own import project, run

__all__ = ["project"]


def test_a_device_process_uses_our_packages(project: Path) -> None:
    model = models.affine(project / "m.popef")
    done = run(project, sys.executable, "-m", "popgate", "run", model)
    assert done.returncode == 0, done.stderr
    assert "FP32[1,4]" in done.stdout
