"""Seeds of random operators."""

from __future__ import annotations

from popir import MAX_UINT64, create_seeds, two_uint32_to_uint64, uint64_to_two_uint32

__all__ = ("MAX_UINT64", "create_seeds", "two_uint32_to_uint64", "uint64_to_two_uint32")
