"""The layer below `popart`, as programs and tests look into it."""

from popart._internal import ir

__all__ = ("ir",)
