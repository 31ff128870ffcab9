"""Regions of tensors."""

from __future__ import annotations

from enum import Enum

from popart.view import Region as Region

#: Uses of a region.
AccessType = Enum("AccessType", "NoAccess Read Write ReadWrite", start=0)
