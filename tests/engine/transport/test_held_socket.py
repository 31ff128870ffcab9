"""Sockets that no forked child keeps."""

from __future__ import annotations

import threading
import warnings

from engine.fork_guard import no_fork
from engine.transport.held_socket import HeldSocket
from tests.support import WAIT


def test_a_finalizer_waits_for_no_lock() -> None:
    """It may run in a thread that the holder of the lock waits for."""
    kept = [HeldSocket()]
    with no_fork(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        collecting = threading.Thread(target=kept.clear, daemon=True)
        collecting.start()
        collecting.join(WAIT)
        assert not collecting.is_alive()
