"""Errors of its own."""

from __future__ import annotations


class UndefinedValue(Exception):
    """Something that has no value yet, such as the device of an unused variable."""
