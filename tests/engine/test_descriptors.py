"""The limit of file descriptors is raised as far as the system lets it be."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from engine.descriptors import WANTED

CODE = """
import resource
from engine import raise_descriptor_limit
hard = {hard}
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("most", [500, WANTED + 1])
def test_the_soft_limit_goes_up_to_the_hard_one(most: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(hard=most)],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = min(most, WANTED)
    assert [int(word) for word in done.stdout.split()] == [wanted, wanted, most]
