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
    except DeviceLost as e:
        raise LoadCutOff(str(e), "device_lost") from e
    except (MemoryError, OutOfMemory) as e:
        why = str(e) or "the machine has too little memory to load it"
        raise LoadCutOff(why, "out_of_memory", at_once=False) from e
    except (EngineError, PopefError, ValueError) as e:
        raise LoadError(str(e)) from e
    except OSError as e:
        if e.errno == errno.ENOMEM:
            raise LoadCutOff(str(e), "out_of_memory", at_once=False) from e
        raise LoadError(f"cannot be read: {e}") from e
    except Exception as e:
        logger.exception("model %s: unexpected", label)
        raise LoadError(f"{type(e).__name__}: {e}; this is a bug") from e
