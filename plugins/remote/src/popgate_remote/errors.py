"""Errors of remote models. Messages are for the operator."""

from __future__ import annotations

from app.repository.model_sources import RemoteError


class SourceAway(RemoteError):
    """The source does not answer, or its answer was cut off; a later attempt may
    succeed.
    """


class SourceChanged(RemoteError):
    """The content of the source differs from its listing."""


class NotThere(RemoteError):
    """The source says that it does not have what was requested."""
