"""Errors of this package."""

from __future__ import annotations


class UndefinedValue(Exception):
    """The value does not exist yet, such as the device of an unused variable."""
