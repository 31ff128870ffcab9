"""Programs written for the original modules run unchanged, on a default installation.

The first four are the guide's own, as they were published; the others are written as a
user of the original would, after its documents and public programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.served import ROOT
from tests.warm import forked

FOLDER = Path(__file__).parent / "listings"
#: Turns warnings into errors, those of the imports too where a process is not forked.
STRICT = "import warnings; warnings.simplefilter('error'); "
#: These start as a user's programs do: between them they import all that there is.
NOT_FORKED = {"model_runner_execution_modes", "popef_describe", "session_queues"}
#: The files that each program is given.
FILES = {
    "model_runner_execution_modes": ["simple.popef"],
    "model_runner_replication": ["simple.popef"],
    "model_runner_multithreading": ["simple.popef"],
    "model_runner_frozen_inputs": ["simple.popef"],
    "model_runner_conditional_execution": ["fused.popef"],
    "benchmark_latency": ["simple.popef"],
    "devices": ["simple.popef"],
    "enumerators_and_printing": ["simple.popef"],
    "error_handling": ["simple.popef"],
    "fastapi_server": ["simple.popef"],
    "models_of_a_file": ["two_models.popef"],
    "numpy_habits": ["simple.popef"],
    "predictor_class": ["simple.popef"],
    "queue_executor": ["simple.popef"],
    "ring_pipeline": ["simple.popef"],
    "sessions_share_device": ["accumulator.popef"],
    "weights_from_checkpoint": ["simple.popef"],
    "repack_compressed": ["accumulator.popef", "feed.popef"],
    "model_runner_dynamic_batch": ["simple.popef"],
    "model_runner_iterations": ["iterations.popef"],
    "model_runner_many_requests": ["simple.popef"],
    "model_runner_monitoring": ["simple.popef"],
    "model_runner_save_programs": ["accumulator.popef"],
    "popef_describe": ["split_1.popef", "split_2.popef"],
    "popef_write_read_append": [],
    "session_callbacks": ["accumulator.popef"],
    "session_memory": ["feed.popef"],
    "session_queues": ["simple.popef"],
}


@pytest.mark.parametrize(("program", "files"), FILES.items(), ids=FILES)
def test_program_succeeds(
    program: str, files: list[str], simple: str, tmp_path: Path
) -> None:
    # Only a pool of its own: otherwise the environment is as anybody's.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("POPGATE_")}
    paths: list[Path] = [Path(simple).with_name(name) for name in files]
    options = ["-p", *map(str, paths)] if paths else []
    script = FOLDER / f"{program}.py"
    command = forked(script, before=STRICT)
    if program in NOT_FORKED:
        command = [sys.executable, "-W", "error", str(script)]
    pool = f"listing-{os.getpid()}-{program}"
    ended = subprocess.run(
        [*command, *options],
        env={**kept, "PYTHONPATH": str(ROOT), "POPGATE_POOL": pool},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("Success: exiting\n")
    assert ended.stderr == ""


def test_every_program_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(FILES)
