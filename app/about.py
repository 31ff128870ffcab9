"""The version of PopGate."""

from __future__ import annotations

from importlib import metadata

try:
    VERSION = metadata.version("popgate")
except metadata.PackageNotFoundError:  # the source tree is not installed
    VERSION = "0+source"
