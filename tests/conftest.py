"""What all tests share: a device pool of their own, and nothing left behind."""

from __future__ import annotations

import os

# Before anything of ours is imported: the devices of a gateway that happens to run on
# this machine are not ours, and two test runs do not wait for each other.
os.environ["POPGATE_POOL"] = f"tests-{os.getpid()}"
