"""The entry point of the profile (`app.config.profiles.Profile`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.config.profiles import Profile
from app.errors import ErrorStatuses, InvalidShape, UnknownModelRun, VersionNotAvailable
from popgate_triton import models
from popgate_triton.trace_routes import UnknownModelTraced

#: Settings that the scripts expect, unless the user sets others.
SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "server_name": "triton",
        "port": 8000,
        "metrics_port": 8002,
        "error_statuses": "triton",
        "max_body_size": 64 * 1024 * 1024,
        "model_control_mode": "none",
        "trust_loopback": True,
    }
)

#: Statuses that differ from HTTP's: 400 for what is too large and for inference with an
#: unknown model, 503 if a queue is full or a deadline has passed.
STATUSES = ErrorStatuses(
    {409: 400, 413: 400, 429: 503, 499: 400, 504: 503},
    {
        InvalidShape: 500,
        UnknownModelRun: 400,
        UnknownModelTraced: 400,
        VersionNotAvailable: 400,
    },
)

PROFILE = Profile(
    "triton", SETTINGS, models.write_models, Path(models.__file__), STATUSES
)
