"""Documents of MLflow's protocol, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from app.api.schemas import Body


class SplitTable(Body):
    """A table as pandas' `to_dict(orient="split")` gives it."""

    columns: list[str | int] | None = None
    data: list[list[Any]]
    index: list[Any] | None = None


class InvocationsRequest(Body):
    """One of `dataframe_split`, `dataframe_records`, `instances` and `inputs`."""

    dataframe_split: SplitTable | None = None
    dataframe_records: list[dict[str, Any]] | None = None
    instances: list[Any] | None = None
    inputs: Any = None
    params: dict[str, Any] | None = None


class InvocationsResponse(Body):
    """A prediction for each row; for `inputs` whole tensors."""

    predictions: Any
