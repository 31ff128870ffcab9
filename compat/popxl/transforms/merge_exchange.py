"""Merged exchanges: not there yet."""

from __future__ import annotations

from typing import NoReturn

import popir


def merge_exchange() -> NoReturn:
    """Not there yet."""
    raise popir.NotYet("transforms.merge_exchange is not there yet")


def io_tile_exchange(verify_overlap: bool = True) -> NoReturn:
    """Not there yet."""
    raise popir.NotYet("transforms.io_tile_exchange is not there yet")
