"""`LoadError`: why a version cannot be loaded."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine import DeviceLost, EngineError, OutOfMemory
from popef_io import PopefError

logger = logging.getLogger(__name__)


class LoadError(Exception):
    """A version that cannot be loaded; the message is for the operator."""


class LoadCutOff(LoadError):
    """Loading was interrupted by a passing condition, so it may be retried.

    The model is not at fault. `code` is the error code of the answer. If `at_once` is
    true, the next request may retry the load, because the interrupted work is not
    repeated in vain.
    """

    def __init__(self, message: str, code: str, *, at_once: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.at_once = at_once


@contextmanager
def explained(label: str) -> Iterator[None]:
    """Turn exceptions into a `LoadError` that an operator understands."""
    try:
        yield
    except LoadError:
        raise
    except Exception as e:
        # From Python 3.12 on, this frame and the traceback would keep each other, and
        # the model, until the garbage collector runs.
        raise _explanation(label, e) from e.with_traceback(None)


def _explanation(label: str, error: Exception) -> LoadError:
    is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, DeviceLost):
        return LoadCutOff(str(error), "device_lost")
    if is_full or isinstance(error, MemoryError | OutOfMemory):
        why = str(error) or "the machine has too little memory to load it"
        return LoadCutOff(why, "out_of_memory", at_once=False)
    if isinstance(error, EngineError | PopefError | ValueError):
        return LoadError(str(error))
    if isinstance(error, OSError):
        return LoadError(f"cannot be read: {error}")
    logger.exception("model %s: unexpected", label)
    return LoadError(f"{type(error).__name__}: {error}; this is a bug")
