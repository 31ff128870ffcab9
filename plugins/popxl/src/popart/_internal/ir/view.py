"""Regions of tensors."""

from __future__ import annotations

from enum import Enum

from popart.view import Region as Region


class AccessType(Enum):
    """Uses of a region."""

    NoAccess = 0
    Read = 1
    Write = 2
    ReadWrite = 3
