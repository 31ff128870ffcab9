"""`LoadedModel`: one version that can run; and why a version cannot be loaded."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.config.model_config import ModelConfig
from app.repository.saved_state import save_state
from app.repository.source import VersionSource
from app.serving.ensemble import Ensemble
from app.serving.route_table import ModelRoutes
from app.serving.runner import RequestScheduler
from app.spec import ModelSpec
from engine import DeviceLost, EngineError, ModelRunner, OutOfMemory
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


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A version that can run, and its sources.

    `memory` is its size in bytes that counts for `--model-memory`. `loaded_at` is a
    `time.time()`. `warmed` says that it has run before it was ready, with free
    dimensions of `fill`. `example` are fitting values by input, if any were given.
    `routes` are its own routes.
    """

    spec: ModelSpec
    runner: ModelRunner | Ensemble
    config: ModelConfig
    source: VersionSource
    memory: int
    loaded_at: float
    warmed: bool
    scheduler: RequestScheduler | None = None
    fill: int = 1
    example: Mapping[str, Any] = field(default_factory=dict)
    routes: ModelRoutes = field(default_factory=ModelRoutes)

    @property
    def version(self) -> str:
        return self.spec.version

    def is_from(self, source: VersionSource, config: ModelConfig) -> bool:
        """Return whether loading these sources again would change nothing."""
        return self.config == config and self.source == source

    def save(self) -> None:
        """Save its state to the place in the options, if that is set. Blocks."""
        if self.config.save_outputs and isinstance(self.runner, ModelRunner):
            save_state(self.runner, Path(self.config.save_outputs), self.version)

    def __repr__(self) -> str:
        return f"<LoadedModel {self.spec.name}/{self.version} {self.runner!r}>"
