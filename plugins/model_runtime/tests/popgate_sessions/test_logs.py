"""What sessions and queues log when the environment asks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.engine import models
from tests.engine.test_logs import run

SESSION = """
import sys
import numpy as np
from engine import LaunchPolicy, Session, SessionConfig
with Session(sys.argv[1], SessionConfig(LaunchPolicy.IMMEDIATE)) as session:
    queues = session.create_queue_manager()
    out = np.zeros((3, 4), np.float32)
    queues.output_queue("output").enqueue(out)
    queues.input_queue("input").flush()
    session.run_main_programs()
"""


def test_sessions_and_queues(tmp_path: Path) -> None:
    fixed = models.affine(tmp_path / "fixed.popef", batch_size=3)
    _, log = run(fixed, code=SESSION, MODEL_RUNTIME_LOG_LEVEL="TRACE")
    for words in (
        r"I \d+ engine\S+loaded_session: <Session 'model' on cpu:\d, active> is loaded",
        r"D \d+ engine.session.queues: input queue 'input' is flushed: 48 bytes",
        r"T \d+ engine.session.loaded_session: .* runs programs \[1\]",
        r"I \d+ engine.session.loaded_session: .* is unloaded",
    ):
        assert re.search(words, log), log
