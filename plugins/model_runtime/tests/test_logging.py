"""The variables of the original's libraries reach its import names too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import logging, sys
import popef
import model_runtime
for name in ("popef.writing", "model_runtime"):
    logger = logging.getLogger(name)
    print(logger.getEffectiveLevel(), logger.hasHandlers())
popef.Writer(sys.argv[1]).createOpaqueBlob("unfinished", "")
"""


def test_logging_of_the_import_names(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path / "file.popef"],
        env={
            **os.environ,
            "POPEF_LOG_LEVEL": "INFO",
            "POPEF_LOG_DEST": str(tmp_path / "popef.log"),
            "MODEL_RUNTIME_LOG_LEVEL": "ERR",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["20 True", "40 True"]
    assert done.stderr == ""
    assert "popef_io.writer: wrote" in (tmp_path / "popef.log").read_text()
