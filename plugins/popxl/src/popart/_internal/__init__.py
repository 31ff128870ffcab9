"""The layer below `popart`, for programs and tests that inspect it."""

from popart._internal import ir

__all__ = ("ir",)
