"""The guide's own programs run as they were published, on a default installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LISTINGS = sorted((Path(__file__).parent / "listings").glob("*.py"))


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda path: path.stem)
def test_listing_succeeds(listing: Path, simple: str, tmp_path: Path) -> None:
    # Only a pool of its own: otherwise the environment is as anybody's.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("POPGATE_")}
    ended = subprocess.run(
        [sys.executable, "-W", "error", listing, "-p", simple],
        env={**kept, "POPGATE_POOL": f"listing-{os.getpid()}-{listing.stem}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("Success: exiting\n")
    assert ended.stderr == ""


def test_there_are_four() -> None:
    assert len(LISTINGS) == 4
