"""Bodies of KServe's first protocol, for documentation."""

from __future__ import annotations

from typing import Any

from app.api.schemas import Body


class PredictRequest(Body):
    """Request with either `instances` (rows) or `inputs` (columns)."""

    instances: list[Any] | None = None
    inputs: Any = None
    signature_name: str | None = None


class PredictResponse(Body):
    """`predictions` for `instances`, `outputs` for `inputs`."""

    predictions: list[Any] | None = None
    outputs: Any = None
